//! grpc.health.v1: the empty name says whether the process lives, a service's name whether it may be used.

use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// What the health service answers. Clones are handles on the same state.
#[derive(Clone, Debug)]
pub struct Health {
    reporter: HealthReporter,
    /// Services known by name, besides the empty name.
    services: &'static [&'static str],
}

impl Health {
    /// The empty name is SERVING, each service NOT_SERVING until [`Health::serving`].
    pub async fn new(services: &'static [&'static str]) -> Self {
        let health = Self { reporter: HealthReporter::new(), services };
        for service in services {
            health.reporter.set_service_status(service, ServingStatus::NotServing).await;
        }
        health
    }

    /// The gRPC service itself.
    #[must_use]
    pub fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }

    /// One service may be used, or no longer.
    pub async fn set(&self, service: &str, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status(service, status).await;
    }

    /// All services may be used.
    pub async fn serving(&self) {
        for service in self.services {
            self.set(service, true).await;
        }
    }

    /// The process is about to stop: every name, the empty one too, is NOT_SERVING.
    pub async fn drain(&self) {
        self.set("", false).await;
        for service in self.services {
            self.set(service, false).await;
        }
    }

    /// Ends the streams of all watchers: they would keep the server from stopping.
    pub async fn end_watches(&self) {
        let mut reporter = self.reporter.clone();
        reporter.clear_service_status("").await;
        for service in self.services {
            reporter.clear_service_status(service).await;
        }
    }
}
