//! The program as a process of its own, for tests that kill it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tonic::transport::Channel;

/// A running program; killed when it goes out of scope.
pub(crate) struct Program {
    /// The process.
    pub(crate) child: Child,
    /// Where it listens, once it said so.
    pub(crate) addr: Option<String>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command without variables of ours in its environment, whose log goes to the end of `log`.
pub(crate) fn clean(mut command: Command, log: &Path) -> Command {
    for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("WALSTORM_") || n.starts_with("OTEL_")) {
        command.env_remove(name);
    }
    let log = File::options().create(true).append(true).open(log).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    command
}

/// The program itself.
pub(crate) fn primary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_walstorm-primary"))
}

impl Program {
    /// Starts it and does not wait.
    pub(crate) fn spawn(command: &mut Command) -> Program {
        Program { child: command.spawn().unwrap(), addr: None }
    }

    /// Waits until it says where it listens; false if it ends before.
    pub(crate) fn wait_for_address(&mut self) -> bool {
        let mut line = String::new();
        let stdout = self.child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        self.addr = line.trim().strip_prefix("listening on ").map(ToOwned::to_owned);
        self.addr.is_some()
    }

    /// A connection.
    pub(crate) async fn channel(&self) -> Channel {
        let addr = self.addr.as_ref().unwrap();
        Channel::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap()
    }

    /// Sends SIGTERM and waits for its end.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let sent = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
        self.child.wait().unwrap().code()
    }
}
