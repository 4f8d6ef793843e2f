//! What a command says beside its output.

use std::fmt::Display;
use std::io::Write;

use pg_wal::WalDir;
use service_kit::printable;

/// Writes a remark, with `walstorm: ` before it, to where remarks go (standard error). Names of files come from outside: they are
/// made harmless for a terminal. A remark that cannot be written is nobody's error: the output and the exit code still count.
pub fn note(notes: &mut dyn Write, text: impl Display) {
    let text = text.to_string();
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    let _ = writeln!(notes, "walstorm: {}", lines.join("\n"));
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
