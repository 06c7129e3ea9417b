//! Rules that keep the code readable: vocabulary, the layout of the library, and the length and links of ARCHITECTURE.md.

use super::rules::Violations;

/// Words of the old dialect, and the standard term for each.
const WORDS: [(&str, &str); 14] = [
    ("whoever", "the name of the actor"),
    ("somebody", "the name of the actor"),
    ("nobody", "the name of the actor"),
    ("upkeep", "maintenance"),
    ("duty", "maintenance task"),
    ("duties", "maintenance tasks"),
    ("askers", "consumers or waiting claims"),
    ("vouch", "verify"),
    ("lament", "warn"),
    ("run-out", "expired"),
    ("called off", "canceled"),
    ("handed out", "delivered"),
    ("put off", "snoozed or delayed"),
    ("for good", "permanently"),
];

const ROOT: &str = "crates/windlass/src/";
const ROOT_ENTRIES_MAX: usize = 16;
const ARCHITECTURE: &str = "ARCHITECTURE.md";
const ARCHITECTURE_WORDS_MAX: usize = 2_000;

/// Comments of Rust and SQL files use the standard terms.
pub fn comments_use_standard_terms(path: &str, text: &str) -> Violations {
    if !path.starts_with("crates/") || !(path.ends_with(".rs") || path.ends_with(".sql")) {
        return Vec::new();
    }
    let comments = text.lines().enumerate().filter_map(|(at, line)| Some((at + 1, comment(line.trim())?)));
    comments.flat_map(|(line, comment)| words_in(comment).map(move |message| (line, message))).collect()
}

fn comment(line: &str) -> Option<&str> {
    ["//", "--"].iter().find_map(|mark| line.strip_prefix(mark))
}

fn words_in(comment: &str) -> impl Iterator<Item = String> {
    let comment = comment.to_lowercase();
    let is_word = |at: usize, word: &str| {
        let before = comment[..at].chars().next_back();
        let after = comment[at + word.len()..].chars().next();
        ![before, after].into_iter().flatten().any(|letter| letter.is_alphanumeric() || letter == '_')
    };
    let found: Vec<_> =
        WORDS.into_iter().filter(|(word, _)| comment.match_indices(word).any(|(at, _)| is_word(at, word))).collect();
    found.into_iter().map(|(word, term)| format!("`{word}` in a comment: write {term}"))
}

/// The library's root has few entries, so that a newcomer finds the folder to start in.
pub fn root_is_small(paths: &[String]) -> Option<String> {
    let below = paths.iter().filter_map(|path| path.strip_prefix(ROOT));
    let mut entries: Vec<&str> = below.filter_map(|path| path.split('/').next()).collect();
    entries.sort_unstable();
    entries.dedup();
    (entries.len() > ROOT_ENTRIES_MAX).then(|| format!("{} entries, at most {ROOT_ENTRIES_MAX}", entries.len()))
}

/// ARCHITECTURE.md is short, and every file that it names exists. `*` in a path stands for both stores.
pub fn architecture_is_true(text: &str, paths: &[String]) -> Vec<String> {
    let words = text.split_whitespace().count();
    let mut violations = Vec::new();
    if words > ARCHITECTURE_WORDS_MAX {
        violations.push(format!("{ARCHITECTURE} has {words} words, at most {ARCHITECTURE_WORDS_MAX}"));
    }
    for name in text.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs") || name.ends_with('/')) {
        let wanted: Vec<String> = match name.contains('*') {
            true => ["sqlite", "postgres"].iter().map(|store| name.replace('*', store)).collect(),
            false => vec![name.to_owned()],
        };
        let is_missing = |wanted: &&String| {
            !paths.iter().any(|path| path.contains(&format!("/{wanted}")) || path.starts_with(*wanted))
        };
        violations.extend(
            wanted
                .iter()
                .filter(is_missing)
                .map(|wanted| format!("{ARCHITECTURE} names `{wanted}`, which does not exist")),
        );
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_words_are_found_in_comments_only() {
        let text =
            "/// Whoever claims.\nlet nobody = 1; // fine\n    // It failed for good.\n// a duty-free shop, endures";
        let lines = comments_use_standard_terms("crates/a/src/a.rs", text).into_iter().map(|(line, _)| line);
        assert_eq!(lines.collect::<Vec<_>>(), [1, 3, 4]);
        assert!(comments_use_standard_terms("xtask/src/a.rs", text).is_empty());
    }

    #[test]
    fn large_root_is_found() {
        let paths = |count: usize| (0..count).map(|at| format!("{ROOT}m{at}/mod.rs")).collect::<Vec<_>>();
        assert_eq!(root_is_small(&paths(ROOT_ENTRIES_MAX)), None);
        assert!(root_is_small(&paths(ROOT_ENTRIES_MAX + 1)).is_some());
    }

    #[test]
    fn missing_files_and_too_many_words_are_found() {
        let paths = ["crates/a/src/store/sqlite/claim.rs".to_owned(), "crates/a/src/queue/mod.rs".to_owned()];
        assert!(architecture_is_true("`queue/` and `queue/mod.rs`, not `Queue::claim`", &paths).is_empty());
        assert_eq!(architecture_is_true("`store/*/claim.rs`", &paths).len(), 1);
        assert_eq!(architecture_is_true(&"word ".repeat(ARCHITECTURE_WORDS_MAX + 1), &paths).len(), 1);
    }
}
