//! All results of a run.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::{Figure, Figures};
use super::protocol::{Opened, Variant};
use crate::statistics::{Summary, summary};

#[derive(Default, Serialize)]
pub struct Results {
    pub measurements: Vec<Measurement>,
    /// Each system's description of itself, by variant.
    pub opened: BTreeMap<&'static str, BTreeMap<Variant, Opened>>,
    /// Systems that could not be installed, and why.
    pub missing: BTreeMap<&'static str, String>,
}

/// All rounds of a system under a workload.
#[derive(Serialize)]
pub struct Measurement {
    pub workload: &'static str,
    pub system: &'static str,
    pub variant: Variant,
    pub rounds: Vec<Figures>,
    /// The error that ended the rounds.
    pub problem: Option<String>,
}

impl Results {
    pub fn add(
        &mut self,
        workload: &'static str,
        system: &'static str,
        variant: Variant,
        measured: Result<Figures, String>,
    ) {
        let at = self.measurements.iter().position(|m| m.is(workload, system, variant));
        let at = at.unwrap_or_else(|| {
            self.measurements.push(Measurement { workload, system, variant, rounds: Vec::new(), problem: None });
            self.measurements.len() - 1
        });
        match measured {
            Ok(figures) => self.measurements[at].rounds.push(figures),
            Err(problem) => self.measurements[at].problem = Some(problem),
        }
    }

    pub fn find(&self, workload: &str, system: &str, variant: Variant) -> Option<&Measurement> {
        self.measurements.iter().find(|m| m.is(workload, system, variant))
    }

    pub fn of(&self, workload: &str, system: &str, variant: Variant, figure: Figure) -> Option<Summary> {
        self.find(workload, system, variant)?.summary(figure)
    }

    /// The best variant and its summary. Excludes loops, which only Windlass has.
    pub fn best(&self, workload: &str, system: &str, figure: Figure) -> Option<(Variant, Summary)> {
        let variants = [Variant::Recommended, Variant::Tuned];
        let measured = variants.into_iter().filter_map(|v| Some((v, self.of(workload, system, v, figure)?)));
        let better = |a: &(Variant, Summary), b: &(Variant, Summary)| a.1.median.total_cmp(&b.1.median);
        if figure.less_is_better() { measured.min_by(better) } else { measured.max_by(better) }
    }
}

impl Measurement {
    fn is(&self, workload: &str, system: &str, variant: Variant) -> bool {
        (self.workload, self.system, self.variant) == (workload, system, variant)
    }

    pub fn summary(&self, figure: Figure) -> Option<Summary> {
        summary(self.rounds.iter().filter_map(|figures| figures.get(&figure).copied()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_variant_is_chosen_over_all_rounds() {
        let mut results = Results::default();
        let rate = |rate| Ok(Figures::from([(Figure::Rate, rate)]));
        for (variant, value) in [(Variant::Recommended, 10.0), (Variant::Tuned, 40.0), (Variant::Tuned, 20.0)] {
            results.add("drain", "pgmq", variant, rate(value));
        }
        results.add("drain", "pgmq", Variant::Loops, rate(90.0));
        results.add("drain", "pgmq", Variant::Tuned, Err("gone".into()));
        let best = results.best("drain", "pgmq", Figure::Rate).unwrap();
        assert_eq!((best.0, best.1.median, best.1.min), (Variant::Tuned, 30.0, 20.0));
        assert_eq!(results.measurements.len(), 3);
        assert_eq!(results.find("drain", "pgmq", Variant::Tuned).unwrap().problem.as_deref(), Some("gone"));
    }
}
