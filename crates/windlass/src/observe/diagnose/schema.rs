//! What to think of the schema: its version and its indexes.

use std::cmp::Ordering;

use super::say::{number, some};
use super::{Assessment, FindingLevel};

/// Something that is not as it should be, and the statement that puts it right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SchemaProblem {
    pub name: String,
    pub remedy: String,
}

/// The indexes of the schema.
#[derive(Debug, Clone, Default)]
pub(crate) struct Indexes {
    /// How many there should be.
    pub expected: usize,
    pub missing: Vec<SchemaProblem>,
    /// Those that are there and not used, since they were not made to the end.
    pub invalid: Vec<SchemaProblem>,
}

/// The name and the statement of each index in a list with one statement a line.
pub(crate) fn listed(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.lines().filter_map(|line| {
        let statement = line.trim_end_matches(';');
        let name = statement.split_once(" INDEX ")?.1.split(' ').next()?;
        Some((name, statement))
    })
}

pub(crate) fn version(found: i64, known: i64) -> Assessment {
    match found.cmp(&known) {
        Ordering::Equal => Assessment::ok(format!("version {found}, as this build needs")),
        Ordering::Greater => Assessment::new(
            FindingLevel::Warning,
            format!("version {found}, but this build knows only up to {known}: another process has migrated it"),
            "put the newer windlass here as well",
        ),
        Ordering::Less => Assessment::new(
            FindingLevel::Problem,
            format!("version {found}, but version {known} is needed"),
            "run `windlass migrate up`",
        ),
    }
}

pub(crate) fn indexes(indexes: &Indexes) -> Assessment {
    let Indexes { expected, missing, invalid } = indexes;
    let named = |list: &[SchemaProblem]| some(list.iter().map(|amiss| amiss.name.clone()));
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("{} missing: {}", missing.len(), named(missing)));
    }
    if !invalid.is_empty() {
        parts.push(format!("{} invalid: {}", invalid.len(), named(invalid)));
    }
    if parts.is_empty() {
        return Assessment::ok(format!("all {} are there", number(*expected as u64)));
    }
    let remedies: Vec<&str> = missing.iter().chain(invalid).map(|amiss| &*amiss.remedy).collect();
    Assessment::new(FindingLevel::Problem, parts.join("; "), remedies.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_listed_by_name() {
        let list = "CREATE INDEX a ON t (x);\n\nCREATE UNIQUE INDEX b ON t (y) WHERE z;\n";
        let expected = [("a", "CREATE INDEX a ON t (x)"), ("b", "CREATE UNIQUE INDEX b ON t (y) WHERE z")];
        assert!(listed(list).eq(expected));
    }

    #[test]
    fn an_older_schema_is_worse_than_a_newer_one() {
        assert_eq!(version(10, 10).level, FindingLevel::Ok);
        assert_eq!(version(11, 10).level, FindingLevel::Warning);
        assert_eq!(version(9, 10).level, FindingLevel::Problem);
    }

    #[test]
    fn the_advice_has_a_statement_for_each_index() {
        let amiss = |name: &str| SchemaProblem { name: name.to_owned(), remedy: format!("MAKE {name}") };
        let fine = Indexes { expected: 20, ..Indexes::default() };
        assert_eq!(super::indexes(&fine), Assessment::ok("all 20 are there"));
        let found =
            super::indexes(&Indexes { missing: vec![amiss("a"), amiss("b")], invalid: vec![amiss("c")], ..fine });
        assert_eq!((found.level, &*found.summary), (FindingLevel::Problem, "2 missing: a, b; 1 invalid: c"));
        assert_eq!(found.advice.as_deref(), Some("MAKE a; MAKE b; MAKE c"));
    }
}
