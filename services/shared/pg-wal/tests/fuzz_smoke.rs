//! The fuzz targets on the stable toolchain: over their named seeds, and over thousands of mutations of them.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Numbers that length and count fields do not expect.
const NUMBERS: [u32; 10] = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFF0, 0xFFFF_FFFF];

/// Seeds of a target, by name.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut seeds: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
        })
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty());
    seeds
}

/// Changes bytes at random, in the ways that break formats.
fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..rng.random_range(1..4) {
        if bytes.is_empty() {
            bytes.push(rng.random());
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..6) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, rng.random()),
            4 => {
                let number = NUMBERS[rng.random_range(0..NUMBERS.len())].to_le_bytes();
                bytes.iter_mut().skip(at).zip(number).for_each(|(b, n)| *b = n);
            }
            _ => {
                let from = rng.random_range(0..=other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
    }
}

/// Runs a target over its seeds and `rounds` mutations of each. The last input before a panic is told by name and round.
fn smoke(target: &str, run: fn(&[u8]), rounds: u32) {
    let seeds = seeds(target);
    for (i, (name, seed)) in seeds.iter().enumerate() {
        run(seed);
        let mut rng = ChaCha8Rng::seed_from_u64(i as u64);
        for round in 0..rounds {
            let mut bytes = seed.clone();
            let other = &seeds[rng.random_range(0..seeds.len())].1;
            mutate(&mut rng, &mut bytes, other);
            let result = std::panic::catch_unwind(|| run(&bytes));
            assert!(result.is_ok(), "{target} fails on {name}, round {round}: {bytes:02X?}");
        }
    }
}

#[test]
fn messages() {
    smoke("message", targets::message, 2_000);
}

#[test]
fn records() {
    smoke("record", targets::record, 300);
}

#[test]
fn logs() {
    smoke("log", targets::log, 60);
}
