//! The claims of Windlass about its performance, and whether a run confirms them.

use serde::Serialize;

use super::figures::Figure;
use super::results::Results;
use super::systems::{SYSTEMS, Storage, find};

#[derive(Clone, Copy, Debug)]
struct Claim {
    system: &'static str,
    workload: &'static str,
    figure: Figure,
    against: Against,
    target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Against {
    /// The best peer on the same kind of database, in its best variant.
    BestPeer,
    System(&'static str),
    /// The same system and variant under this workload.
    Workload(&'static str),
    /// No comparison: the figure is already a ratio.
    Itself,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub claim: String,
    pub target: String,
    pub measured: Option<f64>,
    /// What it is compared with.
    pub against: String,
    /// `None` if something was not measured.
    pub holds: Option<bool>,
}

const fn claim(
    system: &'static str,
    workload: &'static str,
    figure: Figure,
    against: Against,
    target: Target,
) -> Claim {
    Claim { system, workload, figure, against, target }
}

const POSTGRES: &str = "windlass-postgres";
const SQLITE: &str = "windlass-sqlite";

const CLAIMS: &[Claim] = {
    use Against::{BestPeer, Itself, System, Workload};
    use Figure::{Kept, P50Ms, P99Ms, Rate};
    use Target::{AtLeast, AtMost};
    &[
        claim(POSTGRES, "drain", Rate, BestPeer, AtLeast(1.0)),
        claim(POSTGRES, "publish-batch-100", Rate, BestPeer, AtLeast(1.5)),
        claim(POSTGRES, "publish-batch-1000", Rate, BestPeer, AtLeast(1.5)),
        claim(POSTGRES, "publish-16", Rate, BestPeer, AtLeast(2.0)),
        claim(POSTGRES, "publish-256", Rate, BestPeer, AtLeast(5.0)),
        claim(POSTGRES, "publish-256", Rate, System("nats"), AtLeast(1.0)),
        claim(POSTGRES, "latency-50", P50Ms, BestPeer, AtMost(0.5)),
        claim(POSTGRES, "latency-50", P99Ms, BestPeer, AtMost(0.5)),
        claim(POSTGRES, "held-snapshot", Kept, Itself, AtLeast(0.95)),
        claim(POSTGRES, "long-writer", Kept, Itself, AtLeast(0.95)),
        claim(POSTGRES, "readers", Kept, Itself, AtLeast(0.95)),
        claim(POSTGRES, "backlog", Rate, Workload("drain"), AtLeast(0.9)),
        claim(POSTGRES, "tag-sets", Rate, Workload("drain"), AtLeast(0.9)),
        claim(SQLITE, "drain", Rate, BestPeer, AtLeast(5.0)),
        claim(SQLITE, "publish-batch-100", Rate, BestPeer, AtLeast(5.0)),
        claim(SQLITE, "publish-batch-1000", Rate, BestPeer, AtLeast(5.0)),
        claim(SQLITE, "publish-16", Rate, BestPeer, AtLeast(8.0)),
        claim(SQLITE, "backlog", Rate, Workload("drain"), AtLeast(0.9)),
        claim(SQLITE, "tag-sets", Rate, Workload("drain"), AtLeast(0.9)),
    ]
};

pub fn verdicts(results: &Results) -> Vec<Verdict> {
    CLAIMS.iter().map(|claim| claim.judge(results)).collect()
}

impl Claim {
    fn judge(&self, results: &Results) -> Verdict {
        let found = self.ratio(results);
        let measured = found.as_ref().map(|(ratio, _)| *ratio);
        Verdict {
            claim: format!("{} {}, {}", self.system, self.workload, self.figure.title()),
            target: self.target.text(),
            measured,
            against: found.map_or_else(|| self.against.text(), |(_, against)| against),
            holds: measured.map(|ratio| self.target.is_met(ratio)),
        }
    }

    /// The ratio, and what it is compared with.
    fn ratio(&self, results: &Results) -> Option<(f64, String)> {
        let (variant, ours) = results.best(self.workload, self.system, self.figure)?;
        let (other, name) = match self.against {
            Against::Itself => (1.0, self.against.text()),
            Against::Workload(workload) => {
                let other = results.of(workload, self.system, variant, self.figure)?;
                (other.median, format!("{workload}, {}", variant.name()))
            }
            Against::System(system) => (results.best(self.workload, system, self.figure)?.1.median, system.to_owned()),
            Against::BestPeer => {
                let storage = find(self.system)?.storage;
                best_peer(results, self.workload, storage, self.figure)?
            }
        };
        (other > 0.0).then(|| (ours.median / other, name))
    }
}

/// The best peer with this storage.
pub fn best_peer(results: &Results, workload: &str, storage: Storage, figure: Figure) -> Option<(f64, String)> {
    let peers = SYSTEMS.iter().filter(|system| system.storage == storage && !system.is_ours());
    let measured = peers.filter_map(|system| {
        let (variant, summary) = results.best(workload, system.name, figure)?;
        Some((summary.median, format!("{} {}", system.name, variant.name())))
    });
    let better = |a: &(f64, String), b: &(f64, String)| a.0.total_cmp(&b.0);
    if figure.less_is_better() { measured.min_by(better) } else { measured.max_by(better) }
}

impl Against {
    fn text(self) -> String {
        match self {
            Against::BestPeer => "the best peer".to_owned(),
            Against::System(system) => system.to_owned(),
            Against::Workload(workload) => workload.to_owned(),
            Against::Itself => "–".to_owned(),
        }
    }
}

impl Target {
    fn text(self) -> String {
        match self {
            Target::AtLeast(ratio) => format!("≥ {ratio}"),
            Target::AtMost(ratio) => format!("≤ {ratio}"),
        }
    }

    fn is_met(self, ratio: f64) -> bool {
        match self {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::figures::Figures;
    use crate::compare::protocol::Variant;
    use crate::compare::workloads::WORKLOADS;

    type Row = (&'static str, &'static str, Variant, Figure, f64);

    fn judged(rows: &[Row], claim: &str) -> (Option<bool>, String) {
        let mut results = Results::default();
        for (workload, system, variant, figure, value) in rows {
            results.add(workload, system, *variant, Ok(Figures::from([(*figure, *value)])));
        }
        let verdict = verdicts(&results).into_iter().find(|verdict| verdict.claim == claim).unwrap();
        (verdict.holds, verdict.against)
    }

    #[test]
    fn claims_refer_to_existing_workloads_and_systems() {
        for claim in CLAIMS {
            let workload = WORKLOADS.iter().find(|workload| workload.id == claim.workload).unwrap();
            let system = find(claim.system).unwrap();
            assert!(workload.is_for(system) && workload.figures().contains(&claim.figure), "{claim:?}");
        }
    }

    #[test]
    fn claims_compare_with_the_best_variant_of_the_best_peer() {
        let (r, t) = (Variant::Recommended, Variant::Tuned);
        let rows: [Row; 6] = [
            ("drain", POSTGRES, r, Figure::Rate, 20.0),
            ("drain", POSTGRES, t, Figure::Rate, 40.0),
            ("drain", "pgmq", r, Figure::Rate, 5.0),
            ("drain", "pgmq", t, Figure::Rate, 41.0),
            ("drain", "windlass-http", t, Figure::Rate, 99.0),
            ("drain", "nats", t, Figure::Rate, 99.0),
        ];
        let claim = "windlass-postgres drain, events/s";
        assert_eq!(judged(&rows, claim), (Some(false), "pgmq tuned".into()));
        assert_eq!(judged(&rows[..3], claim), (Some(true), "pgmq recommended".into()));
        assert_eq!(judged(&rows[..2], claim), (None, "the best peer".into()));
    }

    #[test]
    fn lower_latency_is_better() {
        let v = Variant::Recommended;
        let rows: [Row; 3] = [
            ("latency-50", POSTGRES, v, Figure::P99Ms, 1.0),
            ("latency-50", "pgmq", v, Figure::P99Ms, 9.0),
            ("latency-50", "pg-boss", v, Figure::P99Ms, 1.9),
        ];
        let claim = "windlass-postgres latency-50, p99 ms";
        assert_eq!(judged(&rows, claim), (Some(false), "pg-boss recommended".into()));
        assert_eq!(judged(&rows[..2], claim), (Some(true), "pgmq recommended".into()));
    }

    #[test]
    fn backlog_is_compared_with_the_same_variant() {
        let (r, t) = (Variant::Recommended, Variant::Tuned);
        let rows: [Row; 3] = [
            ("backlog", SQLITE, t, Figure::Rate, 91.0),
            ("drain", SQLITE, r, Figure::Rate, 500.0),
            ("drain", SQLITE, t, Figure::Rate, 100.0),
        ];
        let claim = "windlass-sqlite backlog, events/s";
        assert_eq!(judged(&rows, claim), (Some(true), "drain, tuned".into()));
        assert_eq!(judged(&rows[..2], claim).0, None);
    }

    #[test]
    fn ratio_is_judged_directly() {
        let row = |kept| [("held-snapshot", POSTGRES, Variant::Tuned, Figure::Kept, kept)];
        let claim = "windlass-postgres held-snapshot, last ÷ first";
        assert_eq!(judged(&row(0.95), claim).0, Some(true));
        assert_eq!(judged(&row(0.94), claim).0, Some(false));
    }
}
