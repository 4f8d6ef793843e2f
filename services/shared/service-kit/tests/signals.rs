//! A real process: what it prints, and how it ends on signals. The program is `examples/node.rs`.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use service_kit::Drain;
use service_kit::client::{self, ClientConfig};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// Where cargo puts the example: beside the folder of this test's own program.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("this test is a file");
    let program = own.ancestors().nth(2).expect("target/PROFILE/deps/test").join("examples/node");
    assert!(program.exists(), "{} is missing: cargo build -p service-kit --example node", program.display());
    program
}

/// A node in its own process; killed if the test ends before it does.
struct Node {
    child: Child,
    addr: String,
}

impl Node {
    /// Starts it and reads where it listens.
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.args(args).env("WALSTORM_EXAMPLE__SERVER__GRACE", "100ms").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints");
        let addr = line.trim_end().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Self { child, addr }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not 0");
        kill_process(pid, signal).expect("it lives");
    }

    /// Waits for the end. The limit only keeps a failed test from hanging.
    fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the program does not end");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It has ended already unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn both_signals_end_it_with_code_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut node = Node::start(&["--listen", "127.0.0.1:0"]);
        node.signal(signal);
        assert_eq!(node.end().code(), Some(0), "{signal:?}");
    }
}

#[tokio::test]
async fn an_open_watch_does_not_keep_it() {
    let mut node = Node::start(&[]);
    let config = ClientConfig { endpoint: format!("http://{}", node.addr), ..ClientConfig::default() };
    let mut client = HealthClient::new(client::connect(&config, &Drain::new()).await.expect("it listens"));
    let mut watch = client.watch(HealthCheckRequest::default()).await.expect("served").into_inner();
    watch.message().await.expect("no error").expect("serving");
    node.signal(Signal::TERM);
    let ended = tokio::task::spawn_blocking(move || node.end()).await.expect("no panic");
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn a_program_that_hangs_is_ended_from_outside_its_runtime() {
    let mut node = Node::start(&["--hang"]);
    node.signal(Signal::TERM);
    assert_eq!(node.end().code(), Some(0));
}

#[test]
fn a_taken_port_and_a_wrong_field_end_it_with_code_1_and_a_remedy() {
    let node = Node::start(&[]);
    let run = |listen: &str, name: &str, value: &str| {
        let mut command = Command::new(program());
        let mut child = command.args(["--listen", listen]).env(name, value).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut text = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
        (child.wait().expect("it is ours").code(), text)
    };
    let (code, text) = run(&node.addr, "WALSTORM_EXAMPLE__LOG__FILTER", "error");
    assert_eq!(code, Some(1));
    assert!(text.starts_with(&format!("node: {} is taken by another process", node.addr)), "{text}");
    let (code, text) = run("127.0.0.1:0", "WALSTORM_EXAMPLE__SERVER__PORT", "1");
    assert_eq!(code, Some(1));
    assert!(text.starts_with("node: environment variable WALSTORM_EXAMPLE__SERVER__PORT: unknown field"), "{text}");
}
