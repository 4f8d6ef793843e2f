//! An order that is random, and the same each time.

/// Puts items into an order that looks random.
pub(crate) fn shuffle<T>(items: &mut [T]) {
    // xorshift64.
    let mut state = 88_172_645_463_325_252_u64;
    for i in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(i, (state % (i as u64 + 1)) as usize);
    }
}
