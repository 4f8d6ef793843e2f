//! What a snapshot costs against span, live share and readers, by profile; drawn as a plot. `cargo bench -p standby-core --bench sweep`
//!
//! Prints a line a point: what was varied, its value, the profile, slots visited, nanoseconds a snapshot by the clock, so that more readers
//! than cores wait for each other. With
//! `-- --plot FILE.svg` it draws them, three panels side by side. Each profile replays the same history through its own writer: so many
//! transactions begin, all but every k-th end in random order, and its own rule compresses what it compresses.

mod shuffle;

use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use pg_types::Lsn;
use pg_types::Xid;
use plotters::prelude::*;
use standby_core::StandbyProfile;
use standby_core::known_assigned_xids::{KnownAssignedView, KnownAssignedXids};

/// Profiles, with how they are called and drawn.
const PROFILES: [(&str, &str, RGBColor); 5] = [
    ("pg13.6", "pg13.6: every slot", RGBColor(200, 60, 50)),
    ("pg13.6+skip-offset", "pg13.6 with skip offsets", RGBColor(230, 150, 40)),
    ("pg18", "pg18: compressed as it is replayed", RGBColor(60, 110, 190)),
    ("pg18+skip-offset", "pg18 with skip offsets", RGBColor(120, 90, 170)),
    ("indexed", "indexed: live xids alone", RGBColor(40, 140, 80)),
];

/// Spans, at one live xid in a hundred.
const SPANS: [u32; 9] = [100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000];
/// One xid in so many is live, at [`SPAN`]: 0.01 % to all.
const STRIDES: [u32; 9] = [10_000, 3_000, 1_000, 300, 100, 30, 10, 3, 1];
/// Readers at once, at [`SPAN`] and [`STRIDE`].
const READERS: [u32; 5] = [1, 2, 4, 8, 16];
/// The span where another thing is varied: that of the message of 2021's worst case.
const SPAN: u32 = 325_000;
/// One in so many lives, where another thing is varied.
const STRIDE: u32 = 100;

/// First xid.
const FIRST: u32 = 1_000;
/// Slots of the arrays: more than any span.
const SLOTS: u32 = 1_100_000;
/// `PROCARRAY_MAXPROCS` with max_connections 5000: by it the old rule decides when an array is too sparse.
const MAX_PROCS: u32 = 5_022;
/// Each point is measured for at least so long.
const LEAST: Duration = Duration::from_millis(25);

/// What is varied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Varied {
    /// Slots from the oldest live xid to the newest.
    Span,
    /// Share of them that is live.
    LiveShare,
    /// Snapshots that are taken at once.
    Readers,
}

/// One point of the sweep.
struct Point {
    /// What is varied.
    varied: Varied,
    /// Its value: slots, per cent, readers.
    value: f64,
    /// Index of the profile.
    profile: usize,
    /// Slots that a snapshot visits.
    visited: u64,
    /// Nanoseconds that a snapshot takes.
    ns: f64,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut plot = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--plot" => plot = Some(PathBuf::from(arguments.next().unwrap_or_else(|| panic!("--plot needs a file's name")))),
            // From `cargo bench`, for every benchmark.
            "--bench" => {}
            // As a test it only has to run.
            "--test" => return,
            other => panic!("unknown argument '{other}': there is --plot FILE.svg"),
        }
    }
    let points = sweep();
    println!("{:<12} {:>10}  {:<20} {:>10} {:>12}", "varied", "value", "profile", "visited", "ns");
    for Point { varied, value, profile, visited, ns } in &points {
        let varied = match varied {
            Varied::Span => "span",
            Varied::LiveShare => "live %",
            Varied::Readers => "readers",
        };
        println!("{varied:<12} {value:>10.2}  {:<20} {visited:>10} {ns:>12.1}", PROFILES[*profile].0);
    }
    if let Some(path) = plot {
        draw(&points, &path).unwrap_or_else(|error| panic!("draw {}: {error}", path.display()));
    }
}

/// All points.
fn sweep() -> Vec<Point> {
    let mut points = Vec::new();
    for (profile, (name, _, _)) in PROFILES.iter().enumerate() {
        let rules: StandbyProfile = name.parse().unwrap_or_else(|error| panic!("{error}"));
        let mut add = |varied, value, (visited, ns)| points.push(Point { varied, value, profile, visited, ns });
        for span in SPANS {
            add(Varied::Span, f64::from(span), measure(&rules, &view(&rules, span, STRIDE.min(span)), 1));
        }
        for stride in STRIDES {
            add(Varied::LiveShare, 100.0 / f64::from(stride), measure(&rules, &view(&rules, SPAN, stride), 1));
        }
        let shared = view(&rules, SPAN, STRIDE);
        for readers in READERS {
            add(Varied::Readers, f64::from(readers), measure(&rules, &shared, readers));
        }
    }
    points
}

/// What is published after `span` transactions began and all but every `stride`-th ended, in random order.
fn view(rules: &StandbyProfile, span: u32, stride: u32) -> KnownAssignedView {
    let mut xids = KnownAssignedXids::new(SLOTS, MAX_PROCS, rules.layout);
    xids.add(Xid(FIRST), Xid(FIRST + span - 1), Lsn(1)).unwrap_or_else(|error| panic!("{error}"));
    let mut gone: Vec<u32> = (0..span).filter(|n| n % stride != 0).collect();
    shuffle::shuffle(&mut gone);
    for n in gone {
        xids.remove_tree(Xid(FIRST + n), &[]);
        xids.clear_calls();
    }
    xids.view()
}

/// Slots and nanoseconds of a snapshot while `readers` take them; the first, which learns skip offsets, is not measured.
fn measure(rules: &StandbyProfile, view: &KnownAssignedView, readers: u32) -> (u64, f64) {
    let xmax = Xid(FIRST + SLOTS);
    let walk = |out: &mut Vec<Xid>| {
        out.clear();
        view.live_below(xmax, rules.scan, out).visited
    };
    walk(&mut Vec::new());
    let together = Barrier::new(readers as usize);
    let one = || {
        let mut out = Vec::new();
        let visited = walk(&mut out);
        together.wait();
        let (begun, mut rounds) = (Instant::now(), 0_u32);
        while begun.elapsed() < LEAST {
            for _ in 0..16 {
                std::hint::black_box(walk(&mut out));
            }
            rounds += 16;
        }
        (visited, begun.elapsed().as_nanos() as f64 / f64::from(rounds))
    };
    let all: Vec<(u64, f64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..readers).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panic!("a reader panicked"))).collect()
    });
    (all[0].0, all.iter().map(|(_, ns)| ns).sum::<f64>() / f64::from(readers))
}

/// Three panels and what their lines are.
fn draw(points: &[Point], path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, (1200, 470)).into_drawing_area();
    root.fill(&WHITE)?;
    let (charts, legend) = root.split_vertically(430);
    let titles = [
        (Varied::Span, "span in slots, 1 % live", (100.0..1_000_000.0, 10.0)),
        (Varied::LiveShare, "live share in %, span 325,000", (0.01..100.0, 10.0)),
        (Varied::Readers, "readers at once, span 325,000, 1 % live", (1.0..16.0, 2.0)),
    ];
    for (area, (varied, title, axis)) in charts.split_evenly((1, 3)).iter().zip(titles) {
        panel(area, points.iter().filter(|point| point.varied == varied), title, axis)?;
    }
    for (i, (_, about, color)) in PROFILES.iter().enumerate() {
        let x = 40 + 230 * i as i32;
        legend.draw(&PathElement::new([(x, 16), (x + 24, 16)], color.stroke_width(3)))?;
        legend.draw(&Text::new(*about, (x + 30, 10), ("sans-serif", 13)))?;
    }
    root.present()?;
    Ok(())
}

/// A number of an axis: 0.01, 100, 10k, 1M.
fn short(n: &f64) -> String {
    match *n {
        n if n >= 1e6 => format!("{}M", n / 1e6),
        n if n >= 1e3 => format!("{}k", n / 1e3),
        n => format!("{n}"),
    }
}

/// One panel: microseconds a snapshot, both axes logarithmic.
fn panel<'a>(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    points: impl Iterator<Item = &'a Point>,
    title: &str,
    (range, base): (std::ops::Range<f64>, f64),
) -> Result<(), Box<dyn std::error::Error>> {
    let points: Vec<&Point> = points.collect();
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(title, ("sans-serif", 15))
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(range.log_scale().base(base), (0.01..10_000.0).log_scale())?;
    let mut mesh = chart.configure_mesh();
    mesh.y_desc("µs a snapshot").label_style(("sans-serif", 12)).light_line_style(WHITE).x_labels(5);
    mesh.x_label_formatter(&short).y_label_formatter(&short).draw()?;
    for (profile, (_, _, color)) in PROFILES.iter().enumerate() {
        let line = points.iter().filter(|point| point.profile == profile).map(|point| (point.value, point.ns / 1000.0));
        chart.draw_series(LineSeries::new(line.clone(), color.stroke_width(2)).point_size(3))?;
    }
    Ok(())
}
