//! Writes archive files atomically: a file with a manifest is complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{LINES_SUFFIX, MANIFEST_SUFFIX, Manifest, PastAttempt, PastEvent, VERSION, archive_error, hex};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::Event;

/// A file is full when it has this many events, or this many uncompressed bytes.
const FILE_EVENTS_MAX: u64 = 50_000;
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The files being written, one per month. Files that are not closed are removed.
pub(crate) struct Archive {
    folder: PathBuf,
    namespace: String,
    now: Timestamp,
    open: BTreeMap<String, OpenFile>,
    closed: Vec<Manifest>,
}

impl Archive {
    pub fn new(folder: &Path, namespace: &str, now: Timestamp) -> Archive {
        let (folder, namespace) = (folder.to_owned(), namespace.to_owned());
        Archive { folder, namespace, now, open: BTreeMap::new(), closed: Vec::new() }
    }

    pub fn write(&mut self, events: &[PastEvent]) -> Result<()> {
        for past in events {
            let month = past.event.created_at.format("%Y-%m").to_string();
            if !self.open.contains_key(&month) {
                let folder = self.folder.join(&self.namespace).join(&month);
                self.open.insert(month.clone(), OpenFile::create(&self.folder, folder)?);
            }
            let full = match self.open.get_mut(&month) {
                Some(open) => open.add(past)?,
                None => false,
            };
            if full && let Some(open) = self.open.remove(&month) {
                self.closed.push(open.close(&self.namespace, month, self.now)?);
            }
        }
        Ok(())
    }

    /// Finishes all files. They are durable when this returns.
    pub fn close(mut self) -> Result<Vec<Manifest>> {
        for (month, open) in std::mem::take(&mut self.open) {
            self.closed.push(open.close(&self.namespace, month, self.now)?);
        }
        Ok(self.closed)
    }
}

/// A file being written, under a temporary name.
struct OpenFile {
    folder: PathBuf,
    temporary: PathBuf,
    lines: Option<GzEncoder<HashingWriter>>,
    events: u64,
    attempts: u64,
    bytes: u64,
    ids: Option<(i64, i64)>,
}

/// Counts and hashes the bytes written to the file.
struct HashingWriter {
    file: BufWriter<File>,
    digest: Sha256,
    bytes: u64,
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// One line: the fields of the event, and its attempts.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    event: &'a Event,
    attempts: &'a [PastAttempt],
}

impl OpenFile {
    fn create(root: &Path, folder: PathBuf) -> Result<OpenFile> {
        fs::create_dir_all(&folder).map_err(|error| archive_error(&folder, error))?;
        // Sync the parent folders, so that new folder names are durable as well.
        for ancestor in folder.ancestors().take_while(|ancestor| ancestor.starts_with(root)) {
            sync_folder(ancestor)?;
        }
        let temporary = folder.join(format!(".{:016x}.unfinished", fastrand::u64(..)));
        let file = File::options().write(true).create_new(true).open(&temporary);
        let file = BufWriter::new(file.map_err(|error| archive_error(&temporary, error))?);
        let lines = GzEncoder::new(HashingWriter { file, digest: Sha256::new(), bytes: 0 }, Compression::default());
        Ok(OpenFile { folder, temporary, lines: Some(lines), events: 0, attempts: 0, bytes: 0, ids: None })
    }

    /// Adds an event. Returns whether the file is full.
    fn add(&mut self, past: &PastEvent) -> Result<bool> {
        let mut line = serde_json::to_vec(&Line { event: &past.event, attempts: &past.attempts })
            .map_err(|error| archive_error(&self.temporary, error))?;
        line.push(b'\n');
        if let Some(lines) = &mut self.lines {
            lines.write_all(&line).map_err(|error| archive_error(&self.temporary, error))?;
        }
        let (first, last) = self.ids.unwrap_or((past.event.id, past.event.id));
        self.ids = Some((first.min(past.event.id), last.max(past.event.id)));
        self.events += 1;
        self.attempts += past.attempts.len() as u64;
        self.bytes += line.len() as u64;
        Ok(self.events >= FILE_EVENTS_MAX || self.bytes >= FILE_BYTES_MAX)
    }

    fn close(mut self, namespace: &str, month: String, now: Timestamp) -> Result<Manifest> {
        let (first_id, last_id) = self.ids.unwrap_or_default();
        let stem = format!("{first_id:012}-{last_id:012}-{:08x}", fastrand::u32(..));
        let (bytes, sha256) = self.finish()?;
        let file = format!("{stem}{LINES_SUFFIX}");
        self.rename(&self.temporary, &file)?;
        let manifest = Manifest {
            version: VERSION,
            namespace: namespace.to_owned(),
            month,
            file,
            created_at: now,
            events: self.events,
            attempts: self.attempts,
            first_id,
            last_id,
            bytes,
            sha256,
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(|error| archive_error(&self.folder, error))?;
        let written = File::create(&self.temporary).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        written.map_err(|error| archive_error(&self.temporary, error))?;
        self.rename(&self.temporary, &format!("{stem}{MANIFEST_SUFFIX}"))?;
        Ok(manifest)
    }

    /// Ends the compressed stream and syncs the file. Returns its size and hash.
    fn finish(&mut self) -> Result<(u64, String)> {
        let failed = |error| archive_error(&self.temporary, error);
        let Some(lines) = self.lines.take() else { return Ok((0, String::new())) };
        let HashingWriter { file, digest, bytes } = lines.finish().map_err(failed)?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        Ok((bytes, hex(&digest.finalize())))
    }

    /// Renames a temporary file to its final name.
    fn rename(&self, from: &Path, name: &str) -> Result<()> {
        fs::rename(from, self.folder.join(name)).map_err(|error| archive_error(from, error))?;
        sync_folder(&self.folder)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // Exists only if something failed. A file that cannot be removed is never read.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Makes the file names in a folder durable.
fn sync_folder(folder: &Path) -> Result<()> {
    // On other systems a folder cannot be opened, and this is not needed.
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| archive_error(folder, error))?;
    }
    Ok(())
}
