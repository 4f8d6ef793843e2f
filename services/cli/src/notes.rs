//! What a command says beside its output.

use std::fmt::Display;
use std::io::{self, Write};

use pg_wal::WalDir;
use service_kit::printable;

/// Writes a remark, with `walstorm: ` before it, to where remarks go (standard error). Names of files come from outside: they are
/// made harmless for a terminal. A remark that cannot be written is nobody's error: the output and the exit code still count.
pub fn note(notes: &mut dyn Write, text: impl Display) {
    let text = text.to_string();
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    let _ = writeln!(notes, "walstorm: {}", lines.join("\n"));
}

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}; what is there is not whole: give it room, or lead it elsewhere")]
struct StdoutError(io::Error);

/// Standard output, whose errors say that it is.
#[derive(Debug)]
pub struct Stdout(io::BufWriter<io::StdoutLock<'static>>);

impl Stdout {
    /// It, for the rest of the command.
    #[must_use]
    pub fn new() -> Self {
        Self(io::BufWriter::new(io::stdout().lock()))
    }
}

impl Default for Stdout {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(of_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_stdout)
    }
}

/// An error as one of standard output.
fn of_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), StdoutError(error))
}

/// Whoever read our output has seen enough, as in `walstorm decode DIR | head`.
#[must_use]
pub fn reader_is_gone(error: &anyhow::Error) -> bool {
    let gone = Some(io::ErrorKind::BrokenPipe);
    error.chain().any(|cause| match cause.downcast_ref::<io::Error>() {
        Some(error) => Some(error.kind()) == gone && error.get_ref().is_some_and(|inner| inner.is::<StdoutError>()),
        None => cause.downcast_ref::<serde_json::Error>().is_some_and(|error| error.io_error_kind() == gone),
    })
}

/// What of a directory is not read, if anything: other timelines and files that stand beside better ones.
pub fn left_out(dir: &WalDir) -> Option<String> {
    let (first, rest) = dir.left_out().split_first()?;
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    Some(format!("reading timeline {}; left out: {}{more}", dir.identity().timeline, first.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn remarks_are_harmless_and_never_fail() {
        let mut out = Vec::new();
        note(&mut out, "segment x\u{1b}[31m is missing\n  ^");
        assert_eq!(String::from_utf8(out).unwrap(), "walstorm: segment x\\u{1b}[31m is missing\n  ^\n");
        note(&mut Full, "not written, and no panic");
    }
}
