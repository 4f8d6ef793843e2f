//! What is played: the sample WAL, a directory of WAL or one segment, a scenario by name, a scenario file (`*.toml`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use primary_core::scenario::SweepPoint;
use primary_core::{Overrides, Scenario};

use super::ladder::LADDERS;
use super::sample_wal;

/// Largest scenario file that is read, in bytes.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;

/// Longest folder name made of a source's name.
const FOLDER_CHARS_MAX: usize = 60;

/// Where the WAL of a source comes from.
#[derive(Clone, Debug)]
pub enum SourceKind {
    /// Real WAL that the program carries.
    Sample,
    /// Real WAL in a directory, or one segment; it is only read.
    WalDir(PathBuf),
    /// A scenario. A file's text was read and checked.
    Scenario {
        /// As named or found in a file.
        scenario: Box<Scenario>,
        /// The file, if it came from one.
        file: Option<PathBuf>,
        /// The point of its sweep, if that is played.
        point: Option<SweepPoint>,
    },
}

/// One source of a run.
#[derive(Clone, Debug)]
pub struct Source {
    /// How the report calls it: the scenario's name, the directory's last part; unique in the run.
    pub name: String,
    /// What it is.
    pub kind: SourceKind,
}

impl Source {
    /// The source that an argument names.
    ///
    /// # Errors
    /// It is neither a scenario's name nor a file nor a directory, or the file is no scenario.
    fn parse(text: &str) -> anyhow::Result<Self> {
        if text == sample_wal::NAME {
            return Ok(Self { name: text.to_owned(), kind: SourceKind::Sample });
        }
        if Scenario::names().any(|name| name == text) {
            let scenario = Box::new(Scenario::load(text)?);
            return Ok(Self { name: text.to_owned(), kind: SourceKind::Scenario { scenario, file: None, point: None } });
        }
        let path = Path::new(text);
        let Ok(meta) = std::fs::metadata(path) else {
            let known: Vec<_> = [sample_wal::NAME].into_iter().chain(Scenario::names()).collect();
            bail!(
                "'{}' is no source: neither a file nor a directory, and none of {}",
                service_kit::printable(text),
                known.join(", ")
            );
        };
        let is_scenario = path.extension().is_some_and(|extension| extension == "toml");
        if meta.is_dir() || !is_scenario {
            return Ok(Self { name: folder_name(path), kind: SourceKind::WalDir(path.to_owned()) });
        }
        if meta.len() > SCENARIO_BYTES_MAX {
            bail!("{} is too large for a scenario file ({} bytes)", path.display(), meta.len());
        }
        let contents = std::fs::read_to_string(path).with_context(|| format!("read the scenario file {}", path.display()))?;
        let scenario = Scenario::parse(&folder_name(path), &contents)
            .with_context(|| format!("read the scenario file {}", path.display()))?;
        let name = clean(scenario.name());
        Ok(Self { name, kind: SourceKind::Scenario { scenario: Box::new(scenario), file: Some(path.to_owned()), point: None } })
    }

    /// What it is, in one line.
    #[must_use]
    pub fn about(&self) -> String {
        match &self.kind {
            SourceKind::Sample => sample_wal::ABOUT.to_owned(),
            SourceKind::WalDir(path) => format!("WAL in {}", service_kit::printable(&path.display().to_string())),
            SourceKind::Scenario { scenario, .. } => {
                let story = scenario.story();
                let first = story.split_once(". ").map_or(story, |(first, _)| first);
                service_kit::printable(&first.replace('\n', " ")).into_owned()
            }
        }
    }
}

/// The sources that the arguments name, with unique names; without arguments the sample and every scenario that has a ladder.
///
/// # Errors
/// An argument is no source.
pub fn resolve(arguments: &[String]) -> anyhow::Result<Vec<Source>> {
    let all = || [sample_wal::NAME].into_iter().chain(LADDERS.iter().map(|ladder| ladder.scenario));
    let mut sources = if arguments.is_empty() {
        all().map(Source::parse).collect::<anyhow::Result<Vec<_>>>()?
    } else {
        arguments.iter().map(|text| Source::parse(text)).collect::<anyhow::Result<Vec<_>>>()?
    };
    // Folders of the report beside these files.
    let mut names: BTreeSet<String> = ["report.json", "timings.json", "traces.jsonl"].map(str::to_owned).into();
    for source in &mut sources {
        let base = source.name.clone();
        let mut number = 2;
        while !names.insert(source.name.clone()) {
            source.name = format!("{base}-{number}");
            number += 1;
        }
    }
    Ok(sources)
}

/// Makes sure that every parameter in `set` is one of a scenario that is played.
///
/// # Errors
/// A parameter that none of them has.
pub fn check_parameters(sources: &[Source], set: &Overrides) -> anyhow::Result<()> {
    let scenarios = || {
        sources.iter().filter_map(|source| match &source.kind {
            SourceKind::Scenario { scenario, .. } => Some(scenario),
            SourceKind::Sample | SourceKind::WalDir(_) => None,
        })
    };
    for name in set.keys() {
        if !scenarios().any(|scenario| scenario.parameters().contains_key(name)) {
            let known: BTreeSet<&str> = scenarios().flat_map(|s| s.parameters().keys().map(String::as_str)).collect();
            let known: Vec<&str> = known.into_iter().collect();
            bail!(
                "--set {}: no scenario that is played has this parameter; there are: {}",
                service_kit::printable(name),
                known.join(", ")
            );
        }
    }
    Ok(())
}

/// Every scenario that has a sweep once for each of its points.
///
/// # Errors
/// A sweep has too many points, or sets seeds although one was asked for.
pub fn sweep(sources: Vec<Source>, seed: Option<u64>) -> anyhow::Result<Vec<Source>> {
    let mut all = Vec::new();
    for source in sources {
        let SourceKind::Scenario { scenario, file, .. } = &source.kind else {
            all.push(source);
            continue;
        };
        let points = scenario.sweep()?;
        if points.len() == 1 {
            all.push(source);
            continue;
        }
        if seed.is_some() && points.iter().any(|point| point.seed != scenario.seed()) {
            bail!("--seed is not for {}, whose sweep sets seeds", source.name);
        }
        for (index, point) in points.into_iter().enumerate() {
            let (scenario, file) = (scenario.clone(), file.clone());
            let kind = SourceKind::Scenario { scenario, file, point: Some(point) };
            all.push(Source { name: format!("{}@{}", source.name, index + 1), kind });
        }
    }
    Ok(all)
}

/// A name for a path's source: its last part, made plain.
fn folder_name(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let last = whole.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    clean(&last)
}

/// Text from outside as the name of a folder: letters, digits, dot, dash and underscore, not beginning with a dot.
fn clean(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
    let name: String = text.chars().take(FOLDER_CHARS_MAX).map(plain).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "source".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_arguments_the_ladders_are_played() {
        let names: Vec<_> = resolve(&[]).unwrap().into_iter().map(|s| s.name).collect();
        assert_eq!(names, ["sample-wal", "catalog-churn", "standby-gaps", "truncate-partitions", "schema-storm"]);
    }

    #[test]
    fn names_are_unique_and_plain() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("w\u{1b}[2J l");
        std::fs::create_dir(&odd).unwrap();
        let arguments = [odd.to_str().unwrap(), odd.to_str().unwrap(), "catalog-churn"].map(str::to_owned);
        let sources = resolve(&arguments).unwrap();
        let names: Vec<_> = sources.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["w__2J_l", "w__2J_l-2", "catalog-churn"]);
        assert!(!sources[0].about().contains('\u{1b}'));
    }

    #[test]
    fn what_is_no_source_is_answered_with_what_there_is() {
        let error = format!("{:#}", resolve(&["nonsense\u{7}".to_owned()]).unwrap_err());
        assert!(error.contains("nonsense\\u{7}") && error.contains("truncate-partitions"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mine.toml");
        let text = "name = 'mine'\nsurprise = 1\nstory = 's'\nseed = 1\n[[actors]]\nname = 'a'\ntransactions = 1\nsteps = []\n";
        std::fs::write(&file, text).unwrap();
        let error = format!("{:#}", resolve(&[file.to_str().unwrap().to_owned()]).unwrap_err());
        assert!(error.contains("mine.toml") && error.contains("line 2"), "{error}");
    }
}
