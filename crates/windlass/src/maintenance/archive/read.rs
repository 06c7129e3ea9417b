//! Reads archive files.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{LINES_SUFFIX, MANIFEST_SUFFIX, Manifest, PastAttempt, PastEvent, VERSION, archive_error, hex};
use crate::error::Result;
use crate::event::Event;

/// The longest line: an event with the largest payload that can be stored, and its attempts.
const LINE_BYTES_MAX: u64 = 2 << 30;

/// All manifests in a folder and its subfolders, ordered by path, and the number of files without a manifest.
pub(crate) fn manifests(folder: &Path) -> Result<(Vec<(PathBuf, Manifest)>, usize)> {
    let (mut found, mut unfinished) = (Vec::new(), 0);
    visit(folder, &mut found, &mut unfinished)?;
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok((found, unfinished))
}

fn visit(folder: &Path, found: &mut Vec<(PathBuf, Manifest)>, unfinished: &mut usize) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|error| archive_error(folder, error))? {
        let entry = entry.map_err(|error| archive_error(folder, error))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if entry.file_type().map_err(|error| archive_error(&path, error))?.is_dir() {
            visit(&path, found, unfinished)?;
        } else if let Some(stem) = name.strip_suffix(MANIFEST_SUFFIX) {
            let manifest = manifest(&path)?;
            found.push((folder.join(format!("{stem}{LINES_SUFFIX}")), manifest));
        } else if let Some(stem) = name.strip_suffix(LINES_SUFFIX) {
            *unfinished += usize::from(!folder.join(format!("{stem}{MANIFEST_SUFFIX}")).exists());
        }
    }
    Ok(())
}

fn manifest(path: &Path) -> Result<Manifest> {
    let text = fs::read(path).map_err(|error| archive_error(path, error))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| archive_error(path, error))?;
    if manifest.version != VERSION {
        let found = manifest.version;
        return Err(archive_error(
            path,
            format!("has format {found}, but this build knows only {VERSION}; upgrade windlass"),
        ));
    }
    Ok(manifest)
}

/// Reads the events of one file, after it was verified against its manifest.
pub(crate) struct Reader {
    path: PathBuf,
    manifest: Manifest,
    lines: BufReader<MultiGzDecoder<File>>,
    read: u64,
}

impl Reader {
    pub fn open(path: &Path, manifest: &Manifest) -> Result<Reader> {
        let (bytes, sha256) = digest(path).map_err(|error| archive_error(path, error))?;
        if (bytes, &sha256) != (manifest.bytes, &manifest.sha256) {
            return Err(archive_error(path, "does not match its manifest: it is damaged or truncated"));
        }
        let file = File::open(path).map_err(|error| archive_error(path, error))?;
        let lines = BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file));
        Ok(Reader { path: path.to_owned(), manifest: manifest.clone(), lines, read: 0 })
    }

    /// The next events, at most `limit`. Empty after the last one.
    pub fn next(&mut self, limit: usize) -> Result<Vec<PastEvent>> {
        let mut events = Vec::new();
        while events.len() < limit {
            let mut line = Vec::new();
            let read = (&mut self.lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            if read.map_err(|error| archive_error(&self.path, error))? == 0 {
                break;
            }
            events.push(self.parse(&line)?);
        }
        self.read += events.len() as u64;
        if events.is_empty() && self.read != self.manifest.events {
            let (read, expected) = (self.read, self.manifest.events);
            return Err(archive_error(&self.path, format!("has {read} events, but its manifest says {expected}")));
        }
        Ok(events)
    }

    fn parse(&self, line: &[u8]) -> Result<PastEvent> {
        #[derive(Deserialize)]
        struct Attempts {
            attempts: Vec<PastAttempt>,
        }
        let number = self.read + 1;
        let failed = |error: String| archive_error(&self.path, format!("near line {number}: {error}"));
        // Parsed twice: `RawValue` fields do not work in a struct with `#[serde(flatten)]`.
        let event: Event = serde_json::from_slice(line).map_err(|error| failed(error.to_string()))?;
        let Attempts { attempts } = serde_json::from_slice(line).map_err(|error| failed(error.to_string()))?;
        if event.namespace != self.manifest.namespace {
            return Err(failed(format!("event {} is of another namespace than the manifest says", event.id)));
        }
        Ok(PastEvent { event, attempts })
    }
}

/// The size and SHA-256 of a file.
fn digest(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let (mut digest, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((bytes, hex(&digest.finalize())));
        }
        digest.update(&buffer[..read]);
        bytes += read as u64;
    }
}
