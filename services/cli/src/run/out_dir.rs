//! The folder of a report: made, recognised, emptied by rule, and written for its owner's eyes only.
//!
//! Rule for a folder that is there already: an empty one is used; one that an earlier run wrote is written anew, and of its
//! contents only what that run made is removed; anything else is refused. An earlier run is known by its marker file, which
//! names every entry before it is made, so that a run that was killed is recognised too. Two runs cannot share a folder: the
//! marker is locked as long as a run lives.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The marker: first line [`MARKER_HEAD`], then one entry of the folder a line.
const MARKER: &str = ".walstorm-report";
/// First line of the marker.
const MARKER_HEAD: &str = "walstorm report 1";
/// Longest marker that is read, in bytes.
const MARKER_BYTES_MAX: u64 = 64 * 1024;

/// A report folder that this run holds.
#[derive(Debug)]
pub struct OutDir {
    /// The folder.
    path: PathBuf,
    /// Its marker, locked until the run ends.
    marker: File,
}

impl OutDir {
    /// Takes the folder by the rule above.
    ///
    /// # Errors
    /// The folder holds something else, another run holds it, or the file system refuses.
    pub fn take(path: &Path) -> anyhow::Result<Self> {
        make_dir(path)?;
        let marker_path = path.join(MARKER);
        let earlier = marker_path.exists();
        if !earlier && fs::read_dir(path).with_context(|| format!("list {}", path.display()))?.next().is_some() {
            bail!(
                "{} is not empty and no report of an earlier run: choose another folder with --out, or empty it yourself",
                path.display()
            );
        }
        let mut marker = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&marker_path)
            .with_context(|| format!("open {}", marker_path.display()))?;
        if marker.try_lock().is_err() {
            bail!("another run is writing to {}: wait for it or choose another folder with --out", path.display());
        }
        if earlier {
            remove_earlier(path, &mut marker)?;
        }
        marker.set_len(0)?;
        marker.rewind()?;
        writeln!(marker, "{MARKER_HEAD}").with_context(|| format!("write {}", marker_path.display()))?;
        Ok(Self { path: path.to_owned(), marker })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Announces an entry of the folder and gives its path; the entry itself is for the caller to make.
    ///
    /// # Errors
    /// The marker cannot be written.
    pub fn entry(&mut self, name: &str) -> anyhow::Result<PathBuf> {
        debug_assert!(is_entry_name(name), "{name}");
        writeln!(self.marker, "{name}").with_context(|| format!("write {}", self.path.join(MARKER).display()))?;
        Ok(self.path.join(name))
    }

    /// Makes a file of the folder, readable for its owner alone, with these contents.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write(&mut self, name: &str, contents: &[u8]) -> anyhow::Result<()> {
        let path = self.entry(name)?;
        let mut file = create_private(&path)?;
        file.write_all(contents).with_context(|| format!("write {}", path.display()))
    }
}

/// Makes a folder (and those above it) that only its owner may enter; one that is there stays as it is.
///
/// # Errors
/// The file system refuses.
pub fn make_dir(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(|| format!("make {}", path.display()))
}

/// Makes or empties a file that only its owner may read.
///
/// # Errors
/// The file system refuses.
pub fn create_private(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("make {}", path.display()))
}

/// Removes what an earlier run announced in its marker, and nothing else.
fn remove_earlier(path: &Path, marker: &mut File) -> anyhow::Result<()> {
    let mut text = String::new();
    let shown = path.join(MARKER);
    marker.take(MARKER_BYTES_MAX).read_to_string(&mut text).with_context(|| format!("read {}", shown.display()))?;
    let mut lines = text.lines();
    match lines.next() {
        None => return Ok(()),
        Some(MARKER_HEAD) => {}
        Some(_) => bail!("{} was not written by this version of walstorm: choose another folder with --out", shown.display()),
    }
    for name in lines.filter(|name| is_entry_name(name)) {
        let entry = path.join(name);
        let removed = match fs::symlink_metadata(&entry) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(&entry),
            Ok(_) => fs::remove_file(&entry),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        };
        removed.with_context(|| format!("remove {}, which an earlier run wrote", entry.display()))?;
    }
    Ok(())
}

/// Entries are plain names directly in the folder: a marker that somebody edited cannot reach elsewhere.
fn is_entry_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && name != MARKER && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_foreign_folder_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
        let error = OutDir::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not empty") && error.contains("--out"), "{error}");
        assert_eq!(names(dir.path()), ["thesis.tex"]);
    }

    #[test]
    fn a_second_run_removes_what_the_first_made_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let mut first = OutDir::take(&path).unwrap();
        first.write("report.json", b"{}").unwrap();
        fs::create_dir(first.entry("wal").unwrap()).unwrap();
        fs::write(path.join("wal/segment"), "").unwrap();
        fs::write(path.join("notes.txt"), "mine").unwrap();
        drop(first);
        let second = OutDir::take(&path).unwrap();
        assert_eq!(names(second.path()), [MARKER, "notes.txt"]);
    }

    #[test]
    fn two_runs_do_not_share_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let _first = OutDir::take(dir.path()).unwrap();
        assert!(OutDir::take(dir.path()).unwrap_err().to_string().contains("another run"));
    }

    #[test]
    fn an_edited_marker_reaches_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        let path = dir.path().join("out");
        fs::write(&outside, "safe").unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join(MARKER), format!("{MARKER_HEAD}\n../outside\n..\n\n{}\n", outside.display())).unwrap();
        OutDir::take(&path).unwrap();
        assert_eq!(fs::read_to_string(outside).unwrap(), "safe");
        fs::write(path.join(MARKER), "something else\nx\n").unwrap();
        assert!(OutDir::take(&path).is_err());
    }

    #[test]
    fn files_and_folders_are_for_the_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut out = OutDir::take(&path).unwrap();
        out.write("report.json", b"{}").unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("report.json")), 0o600);
        assert_eq!(mode(&path.join(MARKER)), 0o600);
    }
}
