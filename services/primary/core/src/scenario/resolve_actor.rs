//! Actors, consumers and faults with parameters put in.

use std::collections::BTreeSet;

use super::at::At;
use super::file::{
    ActorFile, ConnectsFile, ConnectsWordFile, ConsumerFile, ConsumerKindFile, FaultFile, FaultKindFile, MixFile, WalLevelFile,
};
use super::nearest::suggest;
use super::pause::{Pause, TIME_MAX_US};
use super::plan::{ActorPlan, ConsumerKind, ConsumerPlan, FaultKind, FaultPlan, PausedPlan, TransactionPlan};
use super::resolve::{Resolver, SESSIONS_MAX, Said};
use super::step::StepFile;

/// Most transactions of a session.
const TRANSACTIONS_MAX: u64 = 100_000_000;
/// Most bytes a second of a consumer.
const BYTES_PER_SECOND_MAX: u64 = 1 << 50;
/// Most kinds of transactions of an actor, and pauses of a consumer.
const LIST_MAX: usize = 1_000;
/// Greatest id of a replication origin (`PG_UINT16_MAX` means not to replicate).
const ORIGIN_MAX: u64 = 65_534;
/// The slot of a decoder node that is told no other: a consumer that had it would keep the decoder of its own scenario out.
const DECODER_SLOT: &str = "decoder";
/// Greatest weight.
const WEIGHT_MAX: u64 = 1_000_000;

impl Resolver<'_> {
    /// One `[[actors]]`.
    pub(super) fn actor(&self, index: usize, duration_us: Option<u64>) -> ActorPlan {
        let actor: &ActorFile = &self.file.actors[index];
        let sessions = self.or(&actor.sessions, 1, |a| self.number(a, 1, SESSIONS_MAX));
        let transactions = self.optional(&actor.transactions, |a| self.number(a, 0, TRANSACTIONS_MAX));
        let (every, stagger_us) = match self.optional(&actor.rate, |rate| self.rate(rate, sessions)) {
            Some((every, stagger)) => (Some(every), stagger),
            None => (self.optional(&actor.every, |pause| self.pause(pause)), 0),
        };
        let think = self.or(&actor.think, Pause::NONE, |pause| self.pause(pause));
        self.check_pace(actor, duration_us, every, think);
        let name = self.at(&actor.name, |name| super::resolve::name(name)).unwrap_or_default();
        if self.file.actors[..index].iter().any(|other| other.name.get_ref() == &name) {
            self.error(actor.name.span(), format!("there is an actor named '{}' above", name.escape_debug()));
        }
        ActorPlan {
            name,
            sessions,
            start: self.or(&actor.start, Pause::NONE, |pause| self.pause(pause)),
            stagger_us,
            after: actor.after.iter().filter_map(|name| self.at(name, |name| self.actor_above(index, name))).collect(),
            every,
            think,
            transactions,
            transactions_per_connection: self.or(&actor.connects, None, |connects| self.connects(connects)),
            rollback_percent: self.or(&actor.rollback_percent, 0, |a| self.number(a, 0, 100)),
            origin: self.or(&actor.origin, 0, |a| self.number(a, 1, ORIGIN_MAX)) as u16,
            mix: self.mix(actor),
        }
    }

    /// Transactions of a connection, if a session connects more than once.
    fn connects(&self, connects: &ConnectsFile) -> Said<Option<u64>> {
        Ok(match connects {
            ConnectsFile::Word(ConnectsWordFile::Once) => None,
            ConnectsFile::Word(ConnectsWordFile::PerTransaction) => Some(1),
            ConnectsFile::Every(connects) => Some(self.number(&connects.every, 1, TRANSACTIONS_MAX)?),
        })
    }

    /// That it goes on and comes to an end.
    fn check_pace(&self, actor: &ActorFile, duration_us: Option<u64>, every: Option<Pause>, think: Pause) {
        let error = |message: &str| self.error(actor.name.span(), message);
        if actor.rate.is_some() && actor.every.is_some() {
            error("'rate' and 'every' both say when the next transaction begins: use one of them");
        }
        if actor.transactions.is_some() {
            return;
        }
        let paced = actor.rate.is_some() || actor.every.is_some() || actor.think.is_some();
        if duration_us.is_none() && self.file.duration.is_none() || !paced {
            error(
                "an actor without a number of 'transactions' needs 'every', 'rate' or 'think', and the scenario a 'duration'",
            );
        } else if every.map_or(actor.every.is_none() && actor.rate.is_none(), |every| every.is_none()) && think.is_none() {
            error("an actor that runs for a time needs some time from one transaction to the next");
        }
    }

    /// The index of an actor that is above.
    fn actor_above(&self, index: usize, name: &str) -> Said<usize> {
        let above = &self.file.actors[..index];
        above.iter().position(|other| other.name.get_ref() == name).ok_or_else(|| {
            let near = suggest(name, above.iter().map(|other| other.name.get_ref().as_str()));
            format!("no actor above is named '{}'{near}", name.escape_debug())
        })
    }

    /// What an actor's transactions do.
    fn mix(&self, actor: &ActorFile) -> Vec<TransactionPlan> {
        let error = |message: &str| self.error(actor.name.span(), message);
        match (actor.steps.is_empty(), actor.mix.is_empty()) {
            (false, false) => error("'steps' are one kind of transaction, 'mix' several: use one of them"),
            (true, true) => error("an actor needs 'steps', or several kinds of transactions as [[actors.mix]]"),
            _ => {}
        }
        if actor.mix.len() > LIST_MAX {
            error(&format!("{} kinds of transactions are too many: at most {LIST_MAX}", actor.mix.len()));
            return Vec::new();
        }
        if actor.mix.is_empty() {
            return vec![self.transaction(1, &actor.steps)];
        }
        let weight = |kind: &MixFile| self.or(&kind.weight, 1, |a| self.number(a, 0, WEIGHT_MAX));
        let mix = actor.mix.iter().map(|kind| self.transaction(weight(kind), &kind.steps));
        let mix: Vec<TransactionPlan> = mix.collect();
        if mix.iter().all(|kind| kind.weight == 0) {
            error("all weights are 0: no kind of transaction would be chosen");
        }
        mix
    }

    /// Steps as statements, loops before what they repeat.
    fn transaction(&self, weight: u64, steps: &[At<StepFile>]) -> TransactionPlan {
        let mut transaction = TransactionPlan { weight, statements: Vec::new(), lines: Vec::new() };
        self.in_transaction.set(false);
        self.push_steps(steps, 1, 0, &mut transaction);
        transaction
    }

    /// All `[[consumers]]`.
    pub(super) fn consumers(&self) -> Vec<ConsumerPlan> {
        let mut slots = BTreeSet::new();
        let consumers = self.file.consumers.iter().take(LIST_MAX).map(|consumer| {
            if !slots.insert(consumer.slot.get_ref().as_str()) {
                self.error(consumer.slot.span(), "two consumers cannot have one slot");
            }
            self.consumer(consumer)
        });
        consumers.collect()
    }

    /// One of them.
    fn consumer(&self, consumer: &ConsumerFile) -> ConsumerPlan {
        let dead_at_us = self.optional(&consumer.dead_at, |a| self.duration(a));
        let mut after = 0;
        let mut paused = Vec::new();
        for span in consumer.paused.iter().take(LIST_MAX) {
            let plan = self.at(span, |span| {
                let plan = PausedPlan { from_us: self.duration(&span.from)?, to_us: self.duration(&span.to)? };
                match plan {
                    _ if plan.from_us >= plan.to_us => Err("a pause must end after it begins".to_owned()),
                    _ if plan.from_us < after => Err("pauses must follow each other".to_owned()),
                    _ => Ok(plan),
                }
            });
            after = plan.map_or(after, |plan| plan.to_us);
            paused.extend(plan);
        }
        if let Some(dead_at) = consumer.dead_at.as_ref().filter(|_| dead_at_us.is_some_and(|dead| dead < after)) {
            self.error(dead_at.span(), "a consumer cannot die before its last pause ends");
        }
        let replica = self.file.server.wal_level.as_ref().filter(|level| matches!(level.get_ref(), WalLevelFile::Replica));
        if let (Some(level), ConsumerKindFile::Logical) = (replica, consumer.kind) {
            self.error(level.span(), "nothing can be decoded at this wal_level: leave it out, or make the consumers physical");
        }
        ConsumerPlan {
            slot: self.at(&consumer.slot, |slot| slot_name(slot)).unwrap_or_default(),
            kind: match consumer.kind {
                ConsumerKindFile::Physical => ConsumerKind::Physical,
                ConsumerKindFile::Logical => ConsumerKind::Logical,
            },
            bytes_per_second: self.optional(&consumer.bytes_per_second, |a| self.number(a, 1, BYTES_PER_SECOND_MAX)),
            paused,
            dead_at_us,
        }
    }

    /// All `[[faults]]`, in the order of their times.
    pub(super) fn faults(&self) -> Vec<FaultPlan> {
        let mut faults: Vec<FaultPlan> = self.file.faults.iter().take(LIST_MAX).filter_map(|fault| self.fault(fault)).collect();
        faults.sort_by_key(|fault| fault.at_us);
        faults
    }

    /// One of them.
    fn fault(&self, fault: &FaultFile) -> Option<FaultPlan> {
        let at_us = self.or(&fault.at, 0, |a| self.duration(a));
        let span = |amount| self.optional(amount, |a| self.positive_duration(a));
        let signed = |us: u64| us.min(TIME_MAX_US) as i64;
        let (lasts, forward, back) = (span(&fault.r#for), span(&fault.forward), span(&fault.back));
        let kind = match (fault.kind.get_ref(), &fault.r#for, &fault.forward, &fault.back) {
            (FaultKindFile::Crash, None, None, None) => FaultKind::Crash,
            (FaultKindFile::Restart, None, None, None) => FaultKind::Restart,
            (FaultKindFile::DiskFull, Some(_), None, None) => FaultKind::DiskFull { for_us: lasts? },
            (FaultKindFile::ClockJump, None, Some(_), None) => FaultKind::ClockJump { by_us: signed(forward?) },
            (FaultKindFile::ClockJump, None, None, Some(_)) => FaultKind::ClockJump { by_us: -signed(back?) },
            _ => {
                let message =
                    "disk_full needs 'for', clock_jump either 'forward' or 'back', crash and restart nothing but 'at'";
                self.error(fault.kind.span(), message);
                return None;
            }
        };
        Some(FaultPlan { at_us, kind })
    }
}

/// A slot's name as PostgreSQL takes it.
fn slot_name(text: &str) -> Said<String> {
    let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    if text.is_empty() || text.len() > 63 || !text.bytes().all(good) {
        return Err(format!("'{}' is no slot name: use 1 to 63 lower-case letters, digits and '_'", text.escape_debug()));
    }
    if text == DECODER_SLOT {
        return Err(format!("'{text}' is the slot of the decoder node that follows it: use another name, as 'slow_{text}'"));
    }
    Ok(text.to_owned())
}
