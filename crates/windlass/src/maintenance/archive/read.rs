//! Reading files of history.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{LINES, MANIFEST, Manifest, PastAttempt, PastEvent, VERSION, failed, hex};
use crate::error::Result;
use crate::event::Event;

/// The longest line: an event with the largest payload that can be stored, and its attempts.
const LINE_BYTES_MAX: u64 = 2 << 30;

/// Every manifest in a folder and those in it, by path; with how many files lack theirs.
pub(crate) fn manifests(folder: &Path) -> Result<(Vec<(PathBuf, Manifest)>, usize)> {
    let (mut found, mut unfinished) = (Vec::new(), 0);
    visit(folder, &mut found, &mut unfinished)?;
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok((found, unfinished))
}

fn visit(folder: &Path, found: &mut Vec<(PathBuf, Manifest)>, unfinished: &mut usize) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|error| failed(folder, error))? {
        let entry = entry.map_err(|error| failed(folder, error))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if entry.file_type().map_err(|error| failed(&path, error))?.is_dir() {
            visit(&path, found, unfinished)?;
        } else if let Some(stem) = name.strip_suffix(MANIFEST) {
            let manifest = manifest(&path)?;
            found.push((folder.join(format!("{stem}{LINES}")), manifest));
        } else if let Some(stem) = name.strip_suffix(LINES) {
            *unfinished += usize::from(!folder.join(format!("{stem}{MANIFEST}")).exists());
        }
    }
    Ok(())
}

fn manifest(path: &Path) -> Result<Manifest> {
    let text = fs::read(path).map_err(|error| failed(path, error))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| failed(path, error))?;
    if manifest.version != VERSION {
        let found = manifest.version;
        return Err(failed(path, format!("has format {found}, but this build knows only {VERSION}; upgrade windlass")));
    }
    Ok(manifest)
}

/// The events of one file, which was compared with its manifest first.
pub(crate) struct Reader {
    path: PathBuf,
    manifest: Manifest,
    lines: BufReader<MultiGzDecoder<File>>,
    read: u64,
}

impl Reader {
    pub fn open(path: &Path, manifest: &Manifest) -> Result<Reader> {
        let (bytes, sha256) = digest(path).map_err(|error| failed(path, error))?;
        if (bytes, &sha256) != (manifest.bytes, &manifest.sha256) {
            return Err(failed(path, "is not the file that its manifest is about: it was damaged or cut short"));
        }
        let file = File::open(path).map_err(|error| failed(path, error))?;
        let lines = BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file));
        Ok(Reader { path: path.to_owned(), manifest: manifest.clone(), lines, read: 0 })
    }

    /// The next events, `limit` at most; none after the last.
    pub fn next(&mut self, limit: usize) -> Result<Vec<PastEvent>> {
        let mut events = Vec::new();
        while events.len() < limit {
            let mut line = Vec::new();
            let read = (&mut self.lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            if read.map_err(|error| failed(&self.path, error))? == 0 {
                break;
            }
            events.push(self.parse(&line)?);
        }
        self.read += events.len() as u64;
        if events.is_empty() && self.read != self.manifest.events {
            let (read, said) = (self.read, self.manifest.events);
            return Err(failed(&self.path, format!("has {read} events, but its manifest says {said}")));
        }
        Ok(events)
    }

    fn parse(&self, line: &[u8]) -> Result<PastEvent> {
        #[derive(Deserialize)]
        struct Attempts {
            attempts: Vec<PastAttempt>,
        }
        let number = self.read + 1;
        let failed = |error: String| failed(&self.path, format!("near line {number}: {error}"));
        // In two steps: where a struct is made of several, no part of it can be carried as text.
        let event: Event = serde_json::from_slice(line).map_err(|error| failed(error.to_string()))?;
        let Attempts { attempts } = serde_json::from_slice(line).map_err(|error| failed(error.to_string()))?;
        if event.namespace != self.manifest.namespace {
            return Err(failed(format!("event {} is of another namespace than the manifest says", event.id)));
        }
        Ok(PastEvent { event, attempts })
    }
}

/// Size and hash of a file.
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
