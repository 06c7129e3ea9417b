//! `windlass top`.

use serde_json::json;

test_on_each_target! {
    fn once_prints_a_frame(fixture) {
        fixture.publish_payload(json!(1));
        fixture.publish_payload(json!(2));
        fixture.work_until_empty(&["--type", "t", "--quiet"], "read n; echo nope >&2; exit $((66 - n))");
        let (code, stdout, stderr) = fixture.run(&["top", "--once"], "");
        assert_eq!((code, stderr.as_str()), (0, ""));
        let row = stdout.lines().find(|line| line.starts_with("t ")).unwrap();
        let words: Vec<&str> = row.split_whitespace().take(5).collect();
        assert_eq!(words, ["t", "main", "1", "0", "1"], "{stdout}");
        assert!(stdout.contains("exit code 65: nope"), "{stdout}");
    }

    fn live_view_without_a_terminal_suggests_alternatives(fixture) {
        let (code, stdout, stderr) = fixture.run(&["top"], "");
        assert_eq!((code, stdout.as_str()), (2, ""));
        assert!(stderr.contains("`windlass top --once`") && stderr.contains("`windlass stats`"), "{stderr}");
    }
}
