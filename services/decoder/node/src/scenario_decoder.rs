//! How a decoder is set up that decodes a scenario's log: what `[decoder]` of the scenario says, in the decoder's words.

use decoder_core::{Consumer, Profile, RegisteredCallbacks, WorkMem};
use primary_core::scenario::{DecoderConsumer, DecoderHints};

/// The set-up. The default is that of WAL that nobody says anything of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScenarioDecoder {
    /// Callbacks that are registered.
    pub callbacks: RegisteredCallbacks,
    /// It keeps up, whatever its profile says.
    pub live: bool,
    /// The memory limit, if one is named.
    pub work_mem: Option<WorkMem>,
    /// Large transactions are given out in blocks.
    pub streaming: bool,
    /// Prepared transactions are given out when they are prepared.
    pub two_phase: bool,
}

impl From<DecoderHints> for ScenarioDecoder {
    fn from(hints: DecoderHints) -> Self {
        Self {
            callbacks: RegisteredCallbacks {
                syscache: hints.syscache_callbacks,
                relcache: hints.relcache_callbacks,
                entries: hints.callback_entries,
            },
            live: hints.consumer == Some(DecoderConsumer::Live),
            work_mem: hints.work_mem.map(WorkMem::from_bytes),
            streaming: hints.streaming,
            two_phase: hints.two_phase,
        }
    }
}

impl ScenarioDecoder {
    /// Who decodes: `asked` for, or named by the scenario; none leaves a profile as it is.
    #[must_use]
    pub fn consumer(&self, asked: Option<Consumer>) -> Option<Consumer> {
        asked.or(self.live.then_some(Consumer::Live))
    }

    /// A profile with the scenario's consumer.
    #[must_use]
    pub fn profile(&self, profile: Profile) -> Profile {
        profile.consumed_by(self.consumer(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_comes_before_what_the_scenario_says() {
        let quiet = ScenarioDecoder::from(DecoderHints::default());
        assert_eq!(quiet, ScenarioDecoder::default());
        assert_eq!((quiet.consumer(None), quiet.consumer(Some(Consumer::Live))), (None, Some(Consumer::Live)));
        let hints = DecoderHints {
            relcache_callbacks: Some(2),
            consumer: Some(DecoderConsumer::Live),
            work_mem: Some(65_536),
            two_phase: true,
            ..DecoderHints::default()
        };
        let live = ScenarioDecoder::from(hints);
        assert_eq!(
            (live.consumer(None), live.consumer(Some(Consumer::CatchUp))),
            (Some(Consumer::Live), Some(Consumer::CatchUp))
        );
        assert_eq!(live.profile(Profile::indexed()).name, "indexed+live");
        assert_eq!((live.callbacks.relcache, live.work_mem), (Some(2), Some(WorkMem::MIN)));
        assert!(live.two_phase && !live.streaming);
    }
}
