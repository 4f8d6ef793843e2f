//! What every node needs: configuration layers, health, drain, status details, clock, telemetry.
