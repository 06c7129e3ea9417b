//! Writes the report as Markdown.

use std::fmt::Write;

use super::figures::Figure;
use super::machine::Machine;
use super::protocol::Variant;
use super::results::{Measurement, Results};
use super::systems::{SYSTEMS, Storage};
use super::verdicts::{Verdict, best_peer};
use super::workloads::Workload;
use crate::statistics::Summary;

pub fn markdown(machine: &Machine, results: &Results, workloads: &[Workload], verdicts: &[Verdict]) -> String {
    let mut parts = vec!["# Windlass beside its peers".to_owned(), machine_part(machine), systems_part(results)];
    parts.extend(workloads.iter().filter_map(|workload| workload_part(workload, results)));
    parts.push(claims_part(verdicts));
    parts.join("\n\n") + "\n"
}

fn machine_part(machine: &Machine) -> String {
    let memory = machine.memory_gib.map(|gib| format!(", {gib:.0} GiB of memory")).unwrap_or_default();
    let mut text = format!(
        "{} cores{memory}, Linux {}; a file of 8 KiB blocks was synced (fdatasync) {} times a second. Client and server \
         share the machine. Figures are medians, with the least and the most in parentheses.",
        machine.cores,
        machine.kernel,
        Figure::Rate.format(machine.syncs_per_second)
    );
    if let Some(postgres) = &machine.postgres {
        let settings: Vec<_> = postgres.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let _ = write!(text, "\n\nPostgreSQL {}: {}.", postgres.version, settings.join(", "));
    }
    text
}

fn systems_part(results: &Results) -> String {
    let mut text =
        "## Systems\n\n| system | version | variant | how it is set up |\n| --- | --- | --- | --- |".to_owned();
    for system in SYSTEMS {
        for (variant, opened) in results.opened.get(system.name).into_iter().flatten() {
            let (version, about) = (&opened.version, cell(&opened.about));
            let _ = write!(text, "\n| {} | {version} | {} | {about} |", system.name, variant.name());
        }
        if let Some(why) = results.missing.get(system.name) {
            let _ = write!(text, "\n| {} | – | – | could not be installed: {} |", system.name, cell(why));
        }
    }
    text
}

/// `None` if no system was measured.
fn workload_part(workload: &Workload, results: &Results) -> Option<String> {
    let rows: Vec<&Measurement> = in_order(results).filter(|row| row.workload == workload.id).collect();
    if rows.is_empty() {
        return None;
    }
    // Leaves out figures that no measured system has.
    let has = |figure: &Figure| rows.iter().any(|row| row.summary(*figure).is_some());
    let figures: Vec<Figure> = workload.figures().iter().copied().filter(has).collect();
    let mut heads: Vec<String> = ["system", "variant"].map(String::from).into();
    heads.extend(figures.iter().map(|figure| figure.title().to_owned()));
    heads.extend(workload.against.map(|against| format!("÷ {against}")));
    let mut text = format!("## {}\n\n{}\n\n{}", workload.id, capital(workload.title), row(&heads));
    text += &format!("\n| --- | --- |{}", " ---: |".repeat(heads.len() - 2));
    for measurement in rows {
        text += "\n";
        text += &row(&cells(measurement, &figures, workload, results));
    }
    for line in ratios(workload, results) {
        let _ = write!(text, "\n\n{line}");
    }
    Some(text)
}

/// Ordered by system, then by variant.
fn in_order(results: &Results) -> impl Iterator<Item = &Measurement> {
    let variants = [Variant::Recommended, Variant::Tuned, Variant::Loops];
    SYSTEMS.iter().flat_map(move |system| {
        let of_system = move |variant: Variant| {
            let is_its = move |row: &&Measurement| row.system == system.name && row.variant == variant;
            results.measurements.iter().filter(is_its)
        };
        variants.into_iter().flat_map(of_system)
    })
}

fn cells(measurement: &Measurement, figures: &[Figure], workload: &Workload, results: &Results) -> Vec<String> {
    let variant = match measurement.variant {
        Variant::Loops => "loops (no node)",
        variant => variant.name(),
    };
    let mut cells = vec![measurement.system.to_owned(), variant.to_owned()];
    if let (true, Some(problem)) = (measurement.rounds.is_empty(), &measurement.problem) {
        cells.push(cell(problem));
        return cells;
    }
    cells.extend(figures.iter().map(|figure| figure_cell(*figure, measurement.summary(*figure))));
    cells.extend(workload.against.map(|against| {
        let ours = measurement.summary(Figure::Rate).map(|summary| summary.median);
        let other = results.of(against, measurement.system, measurement.variant, Figure::Rate);
        ours.zip(other).map_or("–".into(), |(ours, other)| format!("{:.2}", ours / other.median))
    }));
    cells
}

fn figure_cell(figure: Figure, summary: Option<Summary>) -> String {
    let Some(Summary { median, min, max }) = summary else { return "–".into() };
    match min == max {
        true => figure.format(median),
        false => format!("{} ({}–{})", figure.format(median), figure.format(min), figure.format(max)),
    }
}

/// The ratios to the best peer, for each kind of database.
fn ratios(workload: &Workload, results: &Results) -> Vec<String> {
    let storages =
        [(Storage::Postgres, "windlass-postgres", "PostgreSQL"), (Storage::Sqlite, "windlass-sqlite", "SQLite")];
    let compared = workload.figures().iter().filter(|figure| !matches!(figure, Figure::Offered));
    let mut lines = Vec::new();
    for (storage, ours, name) in storages {
        let ratios = compared.clone().filter_map(|figure| {
            let best = results.best(workload.id, ours, *figure)?.1.median;
            let (peer, who) = best_peer(results, workload.id, storage, *figure)?;
            (peer > 0.0).then(|| format!("{} {:.2} ({who})", figure.title(), best / peer))
        });
        let ratios: Vec<String> = ratios.collect();
        if !ratios.is_empty() {
            lines.push(format!("Windlass ÷ best peer, {name}: {}.", ratios.join(", ")));
        }
    }
    lines
}

fn claims_part(verdicts: &[Verdict]) -> String {
    let mut text =
        "## Claims\n\nRatios within this run: Windlass in its better variant, without the loops, against the \
        other in its better one.\n\n| claim | against | target | measured | holds |\n| --- | --- | ---: | ---: | --- |"
            .to_owned();
    for Verdict { claim, target, measured, against, holds } in verdicts {
        let measured = measured.map_or("–".into(), |ratio| format!("{ratio:.2}"));
        let holds = match holds {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "not measured",
        };
        let _ = write!(text, "\n| {claim} | {against} | {target} | {measured} | {holds} |");
    }
    text
}

fn row(cells: &[String]) -> String {
    format!("| {} |", cells.join(" | "))
}

/// The text as a table cell: one line, with pipes escaped.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).chain(['.']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::figures::Figures;
    use crate::compare::workloads::WORKLOADS;

    fn part(id: &str, rows: &[(&'static str, Variant, f64)]) -> String {
        let mut results = Results::default();
        for (system, variant, rate) in rows {
            let workload = WORKLOADS.iter().find(|workload| workload.id == id).unwrap().id;
            results.add(workload, system, *variant, Ok(Figures::from([(Figure::Rate, *rate)])));
        }
        results.add("drain", "pg-boss", Variant::Tuned, Err("not supported: a | b".into()));
        results.add("drain", "windlass-sqlite", Variant::Tuned, Ok(Figures::from([(Figure::Rate, 100.0)])));
        workload_part(WORKLOADS.iter().find(|workload| workload.id == id).unwrap(), &results).unwrap()
    }

    #[test]
    fn table_has_medians_problems_and_peer_ratios() {
        let (r, t) = (Variant::Recommended, Variant::Tuned);
        let rows = [("pgmq", t, 1000.0), ("windlass-postgres", r, 1000.0), ("windlass-postgres", r, 3000.0)];
        let text = part("drain", &rows);
        assert!(text.contains("| system | variant | events/s |\n| --- | --- | ---: |\n"), "{text}");
        assert!(text.contains("| windlass-postgres | recommended | 2,000 (1,000–3,000) |\n"), "{text}");
        assert!(text.contains("| pg-boss | tuned | not supported: a \\| b |\n"), "{text}");
        assert!(text.ends_with("Windlass ÷ best peer, PostgreSQL: events/s 2.00 (pgmq tuned)."), "{text}");
    }

    #[test]
    fn workload_is_shown_as_a_share_of_another() {
        let text = part("tag-sets", &[("windlass-sqlite", Variant::Tuned, 95.0)]);
        assert!(text.ends_with("| windlass-sqlite | tuned | 95 | 0.95 |"), "{text}");
    }

    #[test]
    fn missing_measurements_are_reported() {
        let verdict =
            |measured, holds| Verdict {
                claim: "a".into(), target: "≥ 2".into(), measured, against: "b".into(), holds
            };
        let text = claims_part(&[verdict(None, None), verdict(Some(1.234), Some(false))]);
        assert!(text.ends_with("| a | b | ≥ 2 | – | not measured |\n| a | b | ≥ 2 | 1.23 | **no** |"), "{text}");
    }
}
