//! Round trips of archive files, and incomplete or damaged files.

use std::fs;

use super::*;
use crate::event::to_raw;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn past(id: i64, created_at: &str) -> PastEvent {
    let payload = RawValue::from_string(r#"{ "n": 1.10, "s":"é\u0041" }"#.to_owned()).unwrap();
    let event = Event {
        id,
        namespace: "ns".into(),
        event_type: "t".into(),
        title: Some("a\nb".into()),
        description: None,
        tags: " a,b".into(),
        payload,
        group_id: Some("g".into()),
        key: None,
        priority: -3,
        producer: None,
        scheduled_task_id: None,
        run_at: None,
        expires_at: Some(at("2026-01-02T03:04:05.123456Z")),
        metadata: Some(to_raw("metadata", &serde_json::json!({ "a": 1 })).unwrap()),
        created_at: at(created_at),
    };
    let attempt = PastAttempt {
        subscription: "main".into(),
        attempt: 1,
        action: Action::CompletedWithErrors,
        worker_id: Some("w".into()),
        picked_at: Some(at(created_at)),
        started_at: None,
        finished_at: at(created_at),
        status_code: Some(-1),
        execution_time_ms: Some(7),
        error_message: Some("x".into()),
        detail: Some(RawValue::from_string("[1, 2]".into()).unwrap()),
        next_retry_at: None,
        retry_count: 2,
        max_retries: None,
    };
    PastEvent { event, attempts: vec![attempt] }
}

fn shown(past: &PastEvent) -> String {
    format!("{:?} {:?}", past.event, past.attempts)
}

fn archived(folder: &Path, events: &[PastEvent]) -> Vec<Manifest> {
    let mut archive = Archive::new(folder, "ns", at("2026-11-16T00:00:00Z"));
    archive.write(events).unwrap();
    archive.close().unwrap()
}

#[test]
fn written_events_are_read_back_by_month() {
    let folder = tempfile::tempdir().unwrap();
    let events = [past(7, "2026-01-31T23:59:59Z"), past(9, "2026-02-01T00:00:00Z"), past(8, "2026-01-01T00:00:00Z")];
    let written = archived(folder.path(), &events);
    let (found, unfinished) = manifests(folder.path()).unwrap();
    assert_eq!((found.len(), unfinished), (2, 0));
    assert_eq!(found.iter().map(|(_, manifest)| manifest.clone()).collect::<Vec<_>>(), written);
    let january = &found[0].1;
    assert_eq!((january.month.as_str(), january.events, january.first_id, january.last_id), ("2026-01", 2, 7, 8));
    let mut read = Vec::new();
    for (path, manifest) in &found {
        assert!(path.starts_with(folder.path().join("ns").join(&manifest.month)));
        let mut reader = Reader::open(path, manifest).unwrap();
        loop {
            let events = reader.next(1).unwrap();
            if events.is_empty() {
                break;
            }
            read.extend(events.iter().map(shown));
        }
    }
    assert_eq!(read, [&events[0], &events[2], &events[1]].map(shown));
}

#[test]
fn unclosed_archive_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = Archive::new(folder.path(), "ns", at("2026-11-16T00:00:00Z"));
    archive.write(&[past(1, "2026-01-01T00:00:00Z")]).unwrap();
    drop(archive);
    assert_eq!(manifests(folder.path()).unwrap(), (Vec::new(), 0));
    assert_eq!(fs::read_dir(folder.path().join("ns/2026-01")).unwrap().count(), 0);
}

#[test]
fn file_that_differs_from_its_manifest_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    archived(folder.path(), &[past(1, "2026-01-01T00:00:00Z")]);
    let (found, _) = manifests(folder.path()).unwrap();
    let (path, manifest) = &found[0];
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(Reader::open(path, manifest).is_err());
    fs::write(path, &bytes).unwrap();
    let more = Manifest { events: 2, ..manifest.clone() };
    let mut reader = Reader::open(path, &more).unwrap();
    assert_eq!(reader.next(9).unwrap().len(), 1);
    let error = reader.next(9).unwrap_err();
    assert!(error.to_string().contains("has 1 events, but its manifest says 2"), "{error}");
    let other = Manifest { namespace: "other".into(), ..manifest.clone() };
    assert!(Reader::open(path, &other).unwrap().next(9).is_err());
}

#[test]
fn file_without_manifest_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = archived(folder.path(), &[past(1, "2026-01-01T00:00:00Z")]).remove(0);
    let stem = manifest.file.strip_suffix(LINES_SUFFIX).unwrap();
    let path = folder.path().join("ns/2026-01").join(format!("{stem}{MANIFEST_SUFFIX}"));
    let later = fs::read_to_string(&path).unwrap().replace("\"version\": 1", "\"version\": 2");
    fs::write(&path, later).unwrap();
    let error = manifests(folder.path()).unwrap_err();
    assert!(error.to_string().contains("has format 2, but this build knows only 1"), "{error}");
    fs::remove_file(&path).unwrap();
    assert_eq!(manifests(folder.path()).unwrap(), (Vec::new(), 1));
}
