//! The nodes as programs of their own, beside the test's.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A program that runs; killed when it goes out of scope.
#[derive(Debug)]
pub struct Program(Child);

impl From<Child> for Program {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // One that has ended needs neither.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where a program of the workspace is: beside the folder of the test's.
///
/// # Errors
/// It was not built.
pub fn path(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let path = test.ancestors().nth(2).context("a test has a folder")?.join(name);
    ensure!(path.exists(), "{} is not built: test the whole workspace", path.display());
    Ok(path)
}

impl Program {
    /// Starts a command.
    ///
    /// # Errors
    /// It does not start.
    pub fn spawn(command: &mut Command) -> anyhow::Result<Program> {
        Ok(Program(command.spawn().with_context(|| format!("start {}", command.get_program().display()))?))
    }

    /// Starts a node that traces everything and sends its spans to `collector`, with what it keeps and its log below `dir`; gives where it listens.
    ///
    /// # Errors
    /// It does not start, or says something else.
    pub fn node(name: &str, args: &[&str], dir: &Path, collector: &str) -> anyhow::Result<(Program, String)> {
        let log = std::fs::File::options().create(true).append(true).open(dir.join(format!("{name}.log")))?;
        let role = name.strip_prefix("walstorm-").context("a node's name begins with walstorm-")?.to_uppercase();
        let mut command = Command::new(path(name)?);
        command.env_clear().env("OTEL_EXPORTER_OTLP_ENDPOINT", collector);
        command.env(format!("WALSTORM_{role}__TELEMETRY__SAMPLING__RATIO"), "1.0");
        command.args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.join(name)).args(args);
        let mut program = Program::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log))?;
        let mut line = String::new();
        BufReader::new(program.0.stdout.take().context("standard output is piped")?).read_line(&mut line)?;
        let addr = line.trim().strip_prefix("listening on ").with_context(|| format!("{name} says {line:?}"))?;
        Ok((program, addr.to_owned()))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// It is gone.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.0.wait()?)
    }

    /// Asks it to stop, and waits until it has.
    ///
    /// # Errors
    /// It ends with another code than 0.
    pub fn stop(self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status = self.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}
