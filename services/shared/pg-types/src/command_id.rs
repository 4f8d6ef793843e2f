//! Command ids: the number of a statement within its transaction (`c.h`).

/// A command id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u32);

impl CommandId {
    /// `FirstCommandId`.
    pub const FIRST: CommandId = CommandId(0);
    /// `InvalidCommandId`.
    pub const INVALID: CommandId = CommandId(u32::MAX);

    /// True unless this is [`CommandId::INVALID`].
    #[must_use]
    pub fn is_valid(self) -> bool {
        self != Self::INVALID
    }
}

impl Default for CommandId {
    fn default() -> Self {
        Self::FIRST
    }
}
