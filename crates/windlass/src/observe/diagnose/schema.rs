//! Assesses the schema: its version and its indexes.

use std::cmp::Ordering;

use super::format::{list, number};
use super::{Assessment, FindingLevel};

/// A database object or setting, with the statement that fixes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedRemedy {
    pub name: String,
    pub remedy: String,
}

/// The indexes of the schema.
#[derive(Debug, Clone, Default)]
pub(crate) struct Indexes {
    /// How many the schema has.
    pub expected: usize,
    pub missing: Vec<NamedRemedy>,
    /// Indexes that were not built completely; PostgreSQL does not use them.
    pub invalid: Vec<NamedRemedy>,
}

/// The name and the statement of each index in a script with one `CREATE INDEX` statement per line.
pub(crate) fn parse_index_statements(script: &str) -> impl Iterator<Item = (&str, &str)> {
    script.lines().filter_map(|line| {
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
            format!("version {found}, but this build knows only up to {known}: a newer windlass has migrated it"),
            "upgrade this windlass as well",
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
    let named = |indexes: &[NamedRemedy]| list(indexes.iter().map(|index| index.name.clone()));
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("{} missing: {}", missing.len(), named(missing)));
    }
    if !invalid.is_empty() {
        parts.push(format!("{} invalid: {}", invalid.len(), named(invalid)));
    }
    if parts.is_empty() {
        return Assessment::ok(format!("all {} exist", number(*expected as u64)));
    }
    let remedies: Vec<&str> = missing.iter().chain(invalid).map(|index| &*index.remedy).collect();
    Assessment::new(FindingLevel::Problem, parts.join("; "), remedies.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_statements_are_parsed() {
        let script = "CREATE INDEX a ON t (x);\n\nCREATE UNIQUE INDEX b ON t (y) WHERE z;\n";
        let expected = [("a", "CREATE INDEX a ON t (x)"), ("b", "CREATE UNIQUE INDEX b ON t (y) WHERE z")];
        assert!(parse_index_statements(script).eq(expected));
    }

    #[test]
    fn older_schema_is_worse_than_a_newer_one() {
        assert_eq!(version(10, 10).level, FindingLevel::Ok);
        assert_eq!(version(11, 10).level, FindingLevel::Warning);
        assert_eq!(version(9, 10).level, FindingLevel::Problem);
    }

    #[test]
    fn advice_has_a_statement_for_each_index() {
        let index = |name: &str| NamedRemedy { name: name.to_owned(), remedy: format!("MAKE {name}") };
        let fine = Indexes { expected: 20, ..Indexes::default() };
        assert_eq!(super::indexes(&fine), Assessment::ok("all 20 exist"));
        let found =
            super::indexes(&Indexes { missing: vec![index("a"), index("b")], invalid: vec![index("c")], ..fine });
        assert_eq!((found.level, &*found.summary), (FindingLevel::Problem, "2 missing: a, b; 1 invalid: c"));
        assert_eq!(found.advice.as_deref(), Some("MAKE a; MAKE b; MAKE c"));
    }
}
