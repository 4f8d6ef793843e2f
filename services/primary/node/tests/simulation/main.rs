//! The stream protocol on a network that fails: a real primary and consumers that die, simulated from a seed.
//!
//! Everything runs on one thread with simulated time and a simulated network (turmoil). A seed says which faults come when, what is
//! written, and how long messages take: partitions in one or both directions, held and slow messages, connections of one client
//! that arrive in any order, hosts that die without a word, orderly stops of the primary; disks survive. It does not say which of
//! several tasks runs first that the same event wakes: tokio draws that by lot. In every history:
//!
//! * S1 what a consumer has stored is exactly the log, in order, each record once;
//! * S2 nothing that was acknowledged is missing after a crash: once the faults end, everybody gets the whole log;
//! * S3 a slot's position never goes back, and never beyond what its consumer has stored;
//! * S4 what is under way never passes the credit by more than one batch;
//! * S5 every stream ends for a reason that the contract names, or with the network.
//!
//! A seed that fails is printed as a command, which runs it many times over, because of the lots.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod consumer;
mod temporary_slots;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use primary_node::{PrimaryConfig, PrimaryNode};
use service_kit::server::{Bound, Listener};
use service_kit::telemetry::Export;
use service_kit::{Clock, Drain};
use tokio::io::{AsyncRead, AsyncWrite};
use turmoil::net::{TcpListener, TcpStream};
use turmoil::{Builder, Sim};

use world::{Rng, World};

/// Where the primary listens.
const PORT: u16 = 5500;
/// Faults happen for so long.
const STORM: Duration = Duration::from_secs(25);
/// Then everybody must have everything within so long.
const CALM: Duration = Duration::from_secs(60);
/// Simulated time advances by so much.
const TICK: Duration = Duration::from_millis(10);
/// Seeds in all; a quarter each in four tests, which run side by side.
const SEEDS: u64 = 240;
/// So often a seed is run that the environment names.
const AGAIN: usize = 20;

/// A simulated listener.
struct Simulated(TcpListener);

impl Listener for Simulated {
    type Io = Connection;

    async fn accept(&self) -> io::Result<Connection> {
        self.0.accept().await.map(|(stream, _)| Connection(stream))
    }
}

/// A simulated connection, as the server wants it.
struct Connection(TcpStream);

impl AsyncRead for Connection {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        std::pin::Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// Simulated time.
#[derive(Debug)]
struct SimulatedClock;

impl Clock for SimulatedClock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        turmoil::sim_elapsed().unwrap_or_default()
    }
}

/// Runs a primary until it is told to stop or killed.
async fn primary(world: Rc<World>) -> turmoil::Result {
    let mut config = PrimaryConfig { data_dir: world.data.path().to_owned(), ..PrimaryConfig::default() };
    config.source.wal_dir = Some(world.wal.path().to_owned());
    config.source.follow = true;
    config.source.follow_interval = Duration::from_millis(250);
    config.streams.batch_bytes = 8 << 10;
    config.server.keepalive_interval = Duration::from_millis(600);
    config.server.keepalive_timeout = Duration::from_millis(600);
    config.server.grace = Duration::from_millis(500);
    config.server.reflection = false;
    let drain = Drain::new();
    world.drain.replace(drain.clone());
    let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT)).await?;
    let bound = Bound::new(Simulated(listener), SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
    let node = PrimaryNode::start_on(bound, config, Export::Off, Arc::new(SimulatedClock), drain).await?;
    world.note("primary starts");
    node.joined().await?;
    world.note("primary stopped");
    Ok(())
}

/// Something that ends a fault.
type Cure = (Duration, Box<dyn FnOnce(&mut Sim<'_>)>);

/// A running simulation.
struct Run {
    /// What survives.
    world: Rc<World>,
    /// The network and the hosts.
    sim: Sim<'static>,
    /// Which faults, and when.
    rng: Rng,
    /// Ends of faults that are to come.
    cures: Vec<Cure>,
    /// When a host that is down may start again.
    down_until: BTreeMap<String, Duration>,
}

impl Run {
    /// A world in which everybody starts.
    fn new(seed: u64, acknowledge_early: bool) -> Self {
        service_kit::blocking::inline_on_this_thread();
        let mut rng = Rng::new(seed, 2);
        let consumers = rng.between(1, 3) as usize;
        let world = Rc::new(World::new(seed, consumers, acknowledge_early));
        let mut sim = Builder::new()
            .rng_seed(seed)
            .tick_duration(TICK)
            .simulation_duration(STORM + CALM + Duration::from_secs(10))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(rng.between(20, 200)))
            .tcp_capacity(4096)
            .enable_random_order()
            .build();
        let shared = Rc::clone(&world);
        sim.host("primary", move || primary(Rc::clone(&shared)));
        for id in 0..consumers {
            let shared = Rc::clone(&world);
            sim.host(name(id), move || consumer::run(Rc::clone(&shared), id));
        }
        Self { world, sim, rng, cures: Vec::new(), down_until: BTreeMap::new() }
    }

    /// Simulates a storm and the calm after it.
    ///
    /// # Errors
    /// The first invariant that was broken.
    fn run(mut self) -> Result<Rc<World>, String> {
        let mut next_fault = self.rng.millis(0, 2_000);
        while self.sim.elapsed() < STORM {
            if self.sim.elapsed() >= next_fault {
                self.fault();
                next_fault = self.sim.elapsed() + self.rng.millis(50, 1_200);
            }
            self.step()?;
        }
        self.world.calm.set(true);
        self.cures.iter_mut().for_each(|(at, _)| *at = Duration::ZERO);
        self.down_until.clear();
        while !self.world.is_complete() {
            if self.sim.elapsed() > STORM + CALM {
                let stored: Vec<_> = self.world.disks.iter().map(|d| d.borrow().records.len()).collect();
                return Err(format!("of {} records only {stored:?} were stored in time", self.world.log.borrow().len()));
            }
            self.step()?;
        }
        for disk in &self.world.disks {
            if disk.borrow().records != *self.world.log.borrow() {
                return Err("what a consumer has stored is not the log".to_owned());
            }
        }
        Ok(self.world)
    }

    /// A moment passes.
    fn step(&mut self) -> Result<(), String> {
        let now = self.sim.elapsed();
        self.world.now.set(now);
        let (due, later) = std::mem::take(&mut self.cures).into_iter().partition(|(at, _)| *at <= now);
        self.cures = later;
        let due: Vec<Cure> = due;
        due.into_iter().for_each(|(_, cure)| cure(&mut self.sim));
        self.restart(now);
        self.sim.step().map_err(|e| format!("a host failed: {e}"))?;
        self.world.check_slots();
        self.world.violation().map_or(Ok(()), Err)
    }

    /// Starts what was killed, or stopped in order, and has been down for long enough.
    fn restart(&mut self, now: Duration) {
        let consumers = (0..self.world.disks.len()).map(name);
        for host in std::iter::once("primary".to_owned()).chain(consumers) {
            if !self.sim.is_host_running(host.clone()) && self.down_until.get(&host).is_none_or(|until| *until <= now) {
                self.sim.bounce(host);
            }
        }
    }

    /// Something goes wrong, or goes on.
    fn fault(&mut self) {
        let consumer = self.rng.between(0, self.world.disks.len() as u64 - 1) as usize;
        let until = self.sim.elapsed() + self.rng.millis(50, 2_500);
        let host = name(consumer);
        match self.rng.between(0, 12) {
            0 | 1 => {
                self.sim.partition("primary", host.clone());
                self.cures.push((until, Box::new(move |sim| sim.repair("primary", host))));
            }
            2 => {
                self.sim.partition_oneway("primary", host.clone());
                self.cures.push((until, Box::new(move |sim| sim.repair_oneway("primary", host))));
            }
            3 => {
                self.sim.partition_oneway(host.clone(), "primary");
                self.cures.push((until, Box::new(move |sim| sim.repair_oneway(host, "primary"))));
            }
            4 => {
                self.sim.hold("primary", host.clone());
                self.cures.push((until, Box::new(move |sim| sim.release("primary", host))));
            }
            5 => {
                let latency = self.rng.millis(5, 700);
                self.sim.set_link_max_message_latency("primary", host, latency);
            }
            6 => self.kill("primary".to_owned(), until),
            7 | 8 => self.kill(host, until),
            9 => {
                self.world.drain.borrow().start();
                self.down_until.insert("primary".to_owned(), until);
            }
            _ => {
                let count = self.rng.between(1, 60);
                self.world.append(&mut self.rng, count);
            }
        }
    }

    /// Kills a host, which starts again at `until`. Nobody hears of it: what is on the way is lost, and its connections are not
    /// closed (their order would be another in each run), so the peers find out by their timeouts or when they speak again.
    fn kill(&mut self, host: String, until: Duration) {
        if !self.sim.is_host_running(host.clone()) {
            return;
        }
        let consumers = (0..self.world.disks.len()).map(name);
        let peers: Vec<_> = if host == "primary" { consumers.collect() } else { vec!["primary".to_owned()] };
        peers.iter().for_each(|peer| self.sim.partition(host.clone(), peer.clone()));
        self.sim.crash(host.clone());
        peers.iter().for_each(|peer| self.sim.repair(host.clone(), peer.clone()));
        self.world.note(&format!("{host} is killed"));
        self.down_until.insert(host, until);
    }
}

/// The host of consumer `id`.
fn name(id: usize) -> String {
    format!("consumer{id}")
}

/// How to see a seed's history again.
fn command(seed: u64) -> String {
    format!("WALSTORM_SIM_SEED={seed} cargo nextest run -p primary-node --test simulation consumers_store")
}

/// Runs the seeds of one quarter, or, if it belongs to it, the one that the environment names.
fn quarter(which: u64) {
    if let Ok(seed) = std::env::var("WALSTORM_SIM_SEED") {
        let seed: u64 = seed.parse().expect("WALSTORM_SIM_SEED is a number");
        (0..AGAIN).filter(|_| seed % 4 == which).for_each(|_| drop(check(seed)));
        return;
    }
    let met: BTreeSet<String> = (0..SEEDS).filter(|seed| seed % 4 == which).flat_map(check).collect();
    // A storm in which nothing happens proves nothing.
    for end in ["STREAM_TAKEN_OVER", "FEEDBACK_TIMEOUT", "DRAINING", "network"] {
        assert!(met.contains(end), "no stream ended by {end}, only by {met:?}");
    }
}

/// Runs a seed, and returns how streams ended.
fn check(seed: u64) -> BTreeSet<String> {
    let run = Run::new(seed, false);
    let world = Rc::clone(&run.world);
    if let Err(violation) = run.run() {
        let history = world.history.borrow();
        let last = &history[history.len().saturating_sub(40)..];
        panic!("{violation}\n  before that:\n    {}\n  again: {}", last.join("\n    "), command(seed));
    }
    world.ends.borrow().keys().cloned().collect()
}

#[test]
fn consumers_store_exactly_the_log_first_quarter() {
    quarter(0);
}

#[test]
fn consumers_store_exactly_the_log_second_quarter() {
    quarter(1);
}

#[test]
fn consumers_store_exactly_the_log_third_quarter() {
    quarter(2);
}

#[test]
fn consumers_store_exactly_the_log_last_quarter() {
    quarter(3);
}

#[test]
fn a_consumer_that_acknowledges_too_early_is_found_out() {
    let violation = (0..SEEDS).find_map(|seed| Run::new(seed, true).run().err());
    let violation = violation.expect("no seed shows the defect");
    assert!(violation.contains("its consumer has stored up to"), "{violation}");
}
