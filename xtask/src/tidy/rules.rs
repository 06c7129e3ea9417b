//! The rules: each a function from a file's path and text to the lines that break it.

use super::source::{Source, without_tests};

/// Line numbers, from 1, and the problem in each line.
pub type Violations = Vec<(usize, String)>;

pub type Rule = fn(path: &str, text: &str) -> Violations;

pub const FILE_RULES: &[Rule] = &[
    sql_is_in_the_stores,
    rust_files_are_short,
    nothing_is_left_undone,
    whitespace_is_clean,
    modules_say_their_purpose,
    no_unwrap,
    file_names_use_our_words,
    super::style::comments_use_standard_terms,
];

const LINES_MAX: usize = 700;

pub fn is_text(path: &str) -> bool {
    [".rs", ".md", ".sql", ".toml"].iter().any(|end| path.ends_with(end))
}

fn sql_is_in_the_stores(path: &str, text: &str) -> Violations {
    let checked = ["crates/windlass/src/", "crates/windlass-server/src/", "crates/windlass-cli/src/"];
    let concerned = is_rust(path)
        && checked.iter().any(|dir| path.starts_with(dir))
        && !path.starts_with("crates/windlass/src/store/");
    if !concerned {
        return Vec::new();
    }
    let strings = Source::parse(text).strings;
    let sql = strings.into_iter().filter(|(_, string)| looks_like_sql(string));
    sql.map(|(line, _)| (line, "SQL belongs in crates/windlass/src/store/".into())).collect()
}

/// Uppercase SQL is recognized by one keyword; lowercase, which could be prose, by two.
fn looks_like_sql(string: &str) -> bool {
    const CAPITALS: [&str; 6] = ["SELECT ", "INSERT INTO ", "UPDATE ", "DELETE FROM ", "CREATE TABLE ", "PRAGMA "];
    const SMALL: [(&str, &str); 4] = [("select", "from"), ("insert", "into"), ("update", "set"), ("delete", "from")];
    let string = string.replace("\\n", " ");
    let words: Vec<&str> = string.split_whitespace().collect();
    let joined = words.join(" ") + " ";
    CAPITALS.iter().any(|capitals| joined.contains(capitals))
        || SMALL.iter().any(|(first, second)| {
            let at = words.iter().position(|word| word == first);
            at.is_some_and(|at| words[at..].contains(second))
        })
}

fn rust_files_are_short(path: &str, text: &str) -> Violations {
    let lines = text.lines().count();
    if is_rust(path) && lines > LINES_MAX {
        vec![(lines, format!("{lines} lines, at most {LINES_MAX}: split it by verb"))]
    } else {
        Vec::new()
    }
}

fn nothing_is_left_undone(path: &str, text: &str) -> Violations {
    if !is_rust(path) {
        return Vec::new();
    }
    let code = Source::parse(text).code;
    let mut violations = Vec::new();
    for (number, line) in numbered(&code) {
        for mark in ["todo!", "unimplemented!", "dbg!", "#[ignore"] {
            if has_word(line, mark) {
                violations.push((number, format!("`{mark}` must not stay")));
            }
        }
    }
    violations
}

fn whitespace_is_clean(path: &str, text: &str) -> Violations {
    let mut violations = Vec::new();
    if is_text(path) {
        for (number, line) in text.split('\n').enumerate().map(|(at, line)| (at + 1, line)) {
            if line.contains('\t') {
                violations.push((number, "a tab".into()));
            }
            if line.ends_with([' ', '\t', '\r']) {
                violations.push((number, "whitespace at the end of the line".into()));
            }
        }
    }
    violations
}

fn modules_say_their_purpose(path: &str, text: &str) -> Violations {
    if is_source_of(path, "crates/") && !text.starts_with("//!") && !text.starts_with("#![doc") {
        vec![(1, "begin with a `//!` line that says what the module is for".into())]
    } else {
        Vec::new()
    }
}

fn no_unwrap(path: &str, text: &str) -> Violations {
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    if !is_source_of(path, "crates/windlass") || is_test {
        return Vec::new();
    }
    let code = without_tests(&Source::parse(text).code);
    let unwraps = numbered(&code).filter(|(_, line)| line.contains(".unwrap()"));
    unwraps.map(|(line, _)| (line, "`unwrap()`: return the error, or `expect` why not".into())).collect()
}

fn file_names_use_our_words(path: &str, _text: &str) -> Violations {
    if !path.starts_with("crates/") {
        return Vec::new();
    }
    let words = path.split(|c: char| !c.is_ascii_alphanumeric());
    let unused = words.filter(|word| ["job", "util", "helper", "manager"].contains(&word.trim_end_matches('s')));
    unused.map(|word| (1, format!("`{word}` in a file name: name what it does"))).collect()
}

/// Both stores have the same migrations. Returns the paths that lack their twin.
pub fn migrations_are_twins(paths: &[String]) -> Vec<(String, String)> {
    const STORES: [&str; 2] = ["store/sqlite/migrations/", "store/postgres/migrations/"];
    let mut lonely = Vec::new();
    for (own, other) in [(STORES[0], STORES[1]), (STORES[1], STORES[0])] {
        for path in paths.iter().filter(|path| path.contains(own) && path.ends_with(".sql")) {
            let twin = path.replace(own, other);
            if !paths.contains(&twin) {
                lonely.push((path.clone(), format!("there is no {twin}")));
            }
        }
    }
    lonely
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

fn is_source_of(path: &str, crates: &str) -> bool {
    is_rust(path) && path.starts_with(crates) && path.contains("/src/")
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}

/// Whether `word` is in the line and not only as the end of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "crates/windlass/src/claim.rs";

    /// The numbers of the lines that break the rule.
    fn lines(rule: Rule, path: &str, text: &str) -> Vec<usize> {
        rule(path, text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn sql_is_found_in_strings_outside_the_stores() {
        let sql = [
            r#"const A: &str = "SELECT 1";"#,
            r#"const A: &str = "select id\n from events";"#,
            r##"const A: &str = r#"x UPDATE event_queue"#;"##,
            "const A: &str = \"\n  INSERT\n  INTO events\";",
            r#"const A: &str = "delete from events";"#,
            r#"const A: &str = "PRAGMA data_version";"#,
            r#"const A: &str = "SELECT\n1";"#,
        ];
        for text in sql {
            assert_eq!(lines(sql_is_in_the_stores, LIB, text), [1], "{text}");
            for path in ["crates/windlass-cli/src/main.rs", "crates/windlass-server/src/a/b.rs"] {
                assert_eq!(lines(sql_is_in_the_stores, path, text), [1], "{path}");
            }
            let store = "crates/windlass/src/store/sqlite/claim.rs";
            assert!(sql_is_in_the_stores(store, text).is_empty());
        }
        let prose = [
            "// SELECT 1 in a comment",
            r#"const A: &str = "update the policy, select one namespace";"#,
            "fn select() { UPDATE (from) }",
        ];
        for text in prose {
            assert!(sql_is_in_the_stores(LIB, text).is_empty(), "{text}");
        }
    }

    #[test]
    fn long_files_are_found() {
        assert!(rust_files_are_short("xtask/src/a.rs", &"\n".repeat(700)).is_empty());
        assert_eq!(lines(rust_files_are_short, "xtask/src/a.rs", &"\n".repeat(701)), [701]);
        assert!(rust_files_are_short("README.md", &"\n".repeat(701)).is_empty());
    }

    #[test]
    fn marks_of_unfinished_work_are_found() {
        let text = "fn a() {\n    todo!()\n}\n#[ignore = \"slow\"]\n// todo! dbg!\nmy_dbg!(\"dbg!\");";
        assert_eq!(lines(nothing_is_left_undone, "xtask/src/a.rs", text), [2, 4]);
    }

    #[test]
    fn tabs_and_trailing_whitespace_are_found() {
        let text = "a\n\tb\nc \nd\r\ne";
        for path in ["a.rs", "a.md", "a.sql", "a.toml"] {
            assert_eq!(lines(whitespace_is_clean, path, text), [2, 3, 4], "{path}");
        }
        assert!(whitespace_is_clean("Makefile", text).is_empty());
    }

    #[test]
    fn modules_without_a_purpose_are_found() {
        assert_eq!(lines(modules_say_their_purpose, LIB, "use a;\n//! late"), [1]);
        assert!(modules_say_their_purpose(LIB, "//! Claims.\nuse a;").is_empty());
        assert!(modules_say_their_purpose(LIB, "#![doc = include_str!(\"a.md\")]").is_empty());
        assert!(modules_say_their_purpose("crates/windlass/tests/it/main.rs", "use a;").is_empty());
    }

    #[test]
    fn unwrap_is_found_outside_tests() {
        let text = "fn a() {\n    b.unwrap();\n}\n#[cfg(test)]\nmod tests {\n    fn c() { d.unwrap() }\n}\n";
        assert_eq!(lines(no_unwrap, LIB, text), [2]);
        assert_eq!(lines(no_unwrap, LIB, "// a.unwrap()\na.unwrap_or(1);\n\"a.unwrap()\""), [0; 0]);
        assert!(no_unwrap("crates/windlass/src/claim/tests.rs", text).is_empty());
        assert!(no_unwrap("crates/windlass/tests/it/main.rs", text).is_empty());
    }

    #[test]
    fn words_we_do_not_use_are_found_in_paths() {
        let line_one = |path| lines(file_names_use_our_words, path, "");
        for path in ["crates/a/src/utils.rs", "crates/a/src/job_list.rs", "crates/helpers/Cargo.toml"] {
            assert_eq!(line_one(path), [1], "{path}");
        }
        for path in ["crates/a/src/utility.rs", "docs/jobs.md"] {
            assert_eq!(line_one(path), [0; 0], "{path}");
        }
    }

    #[test]
    fn migrations_without_a_twin_are_found() {
        let in_store = |store, name| format!("crates/windlass/src/store/{store}/migrations/{name}");
        let mut paths = vec![
            in_store("sqlite", "0001_queue.sql"),
            in_store("postgres", "0001_queue.sql"),
            in_store("postgres", "README.md"),
        ];
        assert!(migrations_are_twins(&paths).is_empty());
        paths.push(in_store("postgres", "0002_more.sql"));
        let lonely = migrations_are_twins(&paths);
        assert_eq!(lonely.len(), 1);
        assert_eq!(lonely[0].0, in_store("postgres", "0002_more.sql"));
    }
}
