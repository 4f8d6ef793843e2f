//! The `walstorm` program.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match walstorm_cli::main(walstorm_cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            walstorm_cli::notes::note(&mut std::io::stderr(), service_kit::error_text(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
