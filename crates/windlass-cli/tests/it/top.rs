//! `windlass top`.

use serde_json::json;

in_each_place! {
    fn a_frame_shows_what_is_there(place) {
        place.event(json!(1));
        place.event(json!(2));
        place.work_off(&["--type", "t", "--quiet"], "read n; echo nope >&2; exit $((66 - n))");
        let (code, stdout, stderr) = place.run(&["top", "--once"], "");
        assert_eq!((code, stderr.as_str()), (0, ""));
        let row = stdout.lines().find(|line| line.starts_with("t ")).unwrap();
        let words: Vec<&str> = row.split_whitespace().take(5).collect();
        assert_eq!(words, ["t", "main", "1", "0", "1"], "{stdout}");
        assert!(stdout.contains("exit code 65: nope"), "{stdout}");
    }

    fn without_a_terminal_it_says_what_to_use(place) {
        let (code, stdout, stderr) = place.run(&["top"], "");
        assert_eq!((code, stdout.as_str()), (2, ""));
        assert!(stderr.contains("`windlass top --once`") && stderr.contains("`windlass stats`"), "{stderr}");
    }
}
