//! The `walstorm` program.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match walstorm_cli::main(walstorm_cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("walstorm: {error:#}");
            ExitCode::FAILURE
        }
    }
}
