//! Which messages a thread hashes next, so that all threads end together.
//!
//! One SHA-256 is a serial chain. A core either advances many messages slowly (the lanes of the wide backend, most bytes a
//! second in all) or few of them fast (SHA-NI, most bytes a second each). A schedule that only fills lanes ends with
//! the longest messages crawling alone; one that only runs fast wastes most of the core. Messages can be put down and
//! taken up again by another thread between two blocks, so the choice is made again every few milliseconds:
//!
//! - the longest messages go first, so those that wait become equally long;
//! - a message that could not end in time in a lane (see [`lower_bound`]) is urgent, and runs fast with another;
//! - everything else fills lanes; when too few messages are left for that, they run fast on as many threads as wait.
//!
//! This file is arithmetic on lengths: no threads, no hashing. Its test simulates whole models.

use super::backend::Choice;

/// How fast a thread is, in bytes per unit of time; only ratios matter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Messages that the wide backend takes at once.
    pub wide_lanes: usize,
    /// The wide backend with all lanes filled, all messages together.
    pub wide: f64,
    /// Messages that the fast backend takes at once.
    pub fast_lanes: usize,
    /// The fast backend with two messages (or its only lane filled), together.
    pub fast: f64,
    /// The fast backend with one message.
    pub single: f64,
}

/// Bytes a second of (all lanes, two messages, one message) of each backend, in units of one message on SHA-NI.
///
/// Measured with `tests/bench/lanes`; that of AVX-512 on a processor where it is the best, since it is used only there. Only
/// the choice of what to take depends on them, never a digest.
const MEASURED: [(&str, f64, f64, f64); 4] =
    [("avx512", 3.5, 0.44, 0.22), ("avx2", 1.06, 0.26, 0.13), ("shani", 2.33, 2.0, 1.0), ("portable", 1.0, 1.0, 1.0)];

impl Speeds {
    /// The speeds of the backends of `choice`.
    pub fn of(choice: &Choice) -> Self {
        let measured =
            |name| MEASURED.iter().find(|(other, ..)| *other == name).expect("every backend is in the table");
        let (_, wide, ..) = measured(choice.wide.name());
        let (_, _, fast, single) = measured(choice.fast.name());
        Self {
            wide_lanes: choice.wide.lanes(),
            wide: *wide,
            fast_lanes: choice.fast.lanes(),
            fast: *fast,
            single: *single,
        }
    }

    /// A message in a lane.
    fn lane(&self) -> f64 {
        self.wide / self.wide_lanes as f64
    }

    /// Messages that run fast together without slowing each other down: two, or one without interleaving.
    fn pair(&self) -> usize {
        self.fast_lanes.min(2)
    }

    /// Whether `count` messages end sooner in lanes than fast.
    pub fn prefers_lanes(&self, count: usize) -> bool {
        self.lane() * count as f64 > if count == 1 { self.single } else { self.fast }
    }
}

/// No schedule of messages of these lengths (sorted, shortest first) on `threads` threads ends sooner than this.
///
/// Let T be the time. A message of length L spends a time of at most T, part of it in a lane (speed l) and part running
/// fast (speed s at best). What it cannot do in a lane it must do fast: at least b = (L - l T) s / (s - l) bytes, when L > l T.
/// A thread's time is worth W bytes in lanes or F bytes fast, so threads * T >= (sum of L - sum of b) / W + (sum of b) / F.
/// Also T >= L / s for the longest. The smallest such T is found by bisection, as both sides are monotonous in T.
pub fn lower_bound(lengths: &[u64], elsewhere: u64, threads: usize, speeds: &Speeds) -> f64 {
    let total = lengths.iter().map(|length| *length as f64).sum::<f64>() + elsewhere as f64;
    let longest = lengths.last().map_or(0.0, |length| *length as f64);
    let most = speeds.wide.max(speeds.fast);
    let mut low = (total / (threads as f64 * most)).max(longest / speeds.single);
    let mut high = (total / speeds.fast.min(speeds.wide)).max(low);
    let can_end_in = |time: f64| {
        let fast = fast_bytes(lengths, time, speeds);
        (total - fast) / most + fast / speeds.fast <= threads as f64 * time
    };
    if can_end_in(low) {
        return low;
    }
    // A thousandth is more exact than the speeds are.
    while high - low > low / 1000.0 {
        let middle = (low + high) / 2.0;
        if can_end_in(middle) { high = middle } else { low = middle }
    }
    low
}

/// Bytes that must run fast so that no message takes longer than `time`.
fn fast_bytes(lengths: &[u64], time: f64, speeds: &Speeds) -> f64 {
    let (lane, single) = (speeds.lane(), speeds.single);
    if single <= lane {
        return 0.0;
    }
    let late = lengths.iter().rev().map(|length| *length as f64 - lane * time).take_while(|late| *late > 0.0);
    late.map(|late| late * single / (single - lane)).sum()
}

/// Messages that wait for a thread.
pub struct Pool<T> {
    /// (bytes left, message), shortest first.
    waiting: Vec<(u64, T)>,
    /// Bytes left in messages that threads have taken, as they were then.
    taken: u64,
    threads: usize,
    /// Threads that have taken something.
    busy: usize,
    speeds: Speeds,
}

impl<T> Pool<T> {
    /// A pool that `threads` threads take from.
    pub fn new(messages: impl IntoIterator<Item = (u64, T)>, threads: usize, speeds: Speeds) -> Self {
        let mut waiting: Vec<(u64, T)> = messages.into_iter().collect();
        waiting.sort_by_key(|(left, _)| *left);
        Self { waiting, taken: 0, threads, busy: 0, speeds }
    }

    /// Whether no message waits and none is taken: no more will come.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.busy == 0
    }

    /// What a thread that does nothing should hash next, with the bytes left of each; empty when nothing waits.
    pub fn take(&mut self) -> Vec<(u64, T)> {
        let count = self.share();
        let taken = self.waiting.split_off(self.waiting.len() - count);
        self.taken += taken.iter().map(|(left, _)| *left).sum::<u64>();
        self.busy += usize::from(!taken.is_empty());
        taken
    }

    /// One more message for a lane that has become free.
    pub fn take_one(&mut self) -> Option<(u64, T)> {
        let one = self.waiting.pop()?;
        self.taken += one.0;
        Some(one)
    }

    /// A thread has done a part of what it had taken (`taken` bytes in all) and gives back what is left.
    pub fn put_back(&mut self, taken: u64, rest: impl IntoIterator<Item = (u64, T)>) {
        self.taken -= taken;
        self.busy -= 1;
        for (left, message) in rest {
            let at = self.waiting.partition_point(|(other, _)| *other < left);
            self.waiting.insert(at, (left, message));
        }
    }

    /// How many of the longest messages a free thread takes: a pair to run fast, or as many as there are lanes.
    fn share(&self) -> usize {
        let (waiting, pair, lanes) = (self.waiting.len(), self.speeds.pair(), self.speeds.wide_lanes);
        // With every free thread filling lanes, would some be left without work? Then this one runs a pair, which
        // leaves more for the others; the longest messages, since the first to choose takes them.
        let idle = self.threads - self.busy;
        let is_scarce = waiting < lanes * idle;
        if self.speeds.prefers_lanes(lanes.min(waiting)) && !is_scarce && !self.is_urgent() {
            return lanes;
        }
        if is_scarce && idle == 1 && self.speeds.prefers_lanes(waiting) && !self.is_urgent() {
            return waiting;
        }
        waiting.min(pair)
    }

    /// Whether the longest message must run fast now to end with the others. A tenth is kept for what is not known exactly.
    fn is_urgent(&self) -> bool {
        let Some((longest, _)) = self.waiting.last() else { return false };
        let lengths: Vec<u64> = self.longest().collect();
        let rest = self.waiting[..self.waiting.len() - lengths.len()].iter().map(|(left, _)| *left).sum::<u64>();
        let time = lower_bound(&lengths, rest + self.taken, self.threads, &self.speeds);
        let together = self.speeds.fast / self.speeds.pair() as f64;
        // One backend for both: outside of full lanes a message is no faster, so there is nothing to win.
        if together <= 1.1 * self.speeds.lane() {
            return false;
        }
        *longest as f64 / together > 0.9 * time
    }

    /// The messages that may be too long for a lane: there are fewer than threads * lanes of them.
    fn longest(&self) -> impl Iterator<Item = u64> + '_ {
        let most = self.threads * self.speeds.wide_lanes;
        self.waiting[self.waiting.len().saturating_sub(most)..].iter().map(|(left, _)| *left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measured here: 16 AVX-512 lanes and interleaved SHA-NI, in units of one message on SHA-NI.
    const AVX512: Speeds = Speeds { wide_lanes: 16, wide: 3.5, fast_lanes: 4, fast: 1.9, single: 1.0 };

    /// Four interleaved messages on SHA-NI, where that is the best in every way.
    const SHANI: Speeds = Speeds { wide_lanes: 4, wide: 2.33, fast_lanes: 4, fast: 2.0, single: 1.0 };

    /// The unit of the simulation's clock and the time between two decisions of a thread.
    const TICKS: u64 = 4;

    /// Plays the pool against a clock: each thread advances what it has taken at the speeds given. Gives the makespan
    /// in units of time in which a fast message advances by `unit` bytes.
    fn makespan(lengths: &[u64], threads: usize, speeds: &Speeds, unit: f64) -> f64 {
        let mut pool = Pool::new(lengths.iter().map(|length| (*length, ())), threads, *speeds);
        let mut active: Vec<(u64, u64, Vec<f64>)> = vec![(0, 0, Vec::new()); threads];
        let mut clock = 0u64;
        while !pool.is_done() {
            for (taken, since, messages) in &mut active {
                if messages.is_empty() || clock - *since >= TICKS {
                    if *taken > 0 {
                        pool.put_back(*taken, messages.drain(..).map(|left| (left.ceil() as u64, ())));
                    }
                    let next = pool.take();
                    *taken = next.iter().map(|(left, ())| *left).sum();
                    *messages = next.iter().map(|(left, ())| *left as f64).collect();
                    *since = clock;
                }
                advance(&mut pool, taken, messages, speeds, unit);
            }
            clock += 1;
        }
        clock as f64
    }

    /// One tick of a thread. A lane whose message ends takes another and goes on with it.
    fn advance(pool: &mut Pool<()>, taken: &mut u64, messages: &mut Vec<f64>, speeds: &Speeds, unit: f64) {
        let lanes = speeds.prefers_lanes(messages.len());
        let speed = match messages.len() {
            _ if lanes => speeds.lane(),
            1 => speeds.single,
            count => speeds.fast / count as f64,
        };
        let mut budgets = vec![speed * unit; messages.len()];
        while let Some(index) = (0..messages.len()).find(|index| messages[*index] <= budgets[*index]) {
            budgets[index] -= messages[index];
            match if lanes { pool.take_one() } else { None } {
                Some((left, ())) => {
                    *taken += left;
                    messages[index] = left as f64;
                }
                None => {
                    messages.swap_remove(index);
                    budgets.swap_remove(index);
                }
            }
        }
        messages.iter_mut().zip(budgets).for_each(|(left, budget)| *left -= budget);
    }

    /// The parameters of a decoder as vLLM holds them, in bytes of bfloat16: (bytes, how many).
    struct Shapes {
        layers: u64,
        hidden: u64,
        vocabulary: u64,
        /// Rows of the fused q/k/v projection, and columns of the output projection.
        attention: (u64, u64),
        /// Rows of gate and up together, for each of `experts` experts; fused into one tensor when there are several.
        intermediate: u64,
        experts: u64,
    }

    impl Shapes {
        /// Bytes of every parameter on one of `tp` ranks.
        fn lengths(&self, tp: u64) -> Vec<u64> {
            let mut lengths = vec![2 * self.vocabulary * self.hidden / tp; 2];
            for _ in 0..self.layers {
                let (qkv, output) = self.attention;
                lengths.extend([2 * qkv * self.hidden / tp, 2 * output * self.hidden / tp]);
                let up = 2 * self.experts * self.intermediate * self.hidden / tp;
                lengths.extend([up, up / 2, 2 * self.hidden, 2 * self.hidden]);
                if self.experts > 1 {
                    lengths.push(2 * self.experts * self.hidden);
                }
            }
            lengths.push(2 * self.hidden);
            lengths
        }
    }

    const MODELS: [(&str, Shapes); 4] = [
        (
            "Llama-3 8B",
            Shapes {
                layers: 32,
                hidden: 4096,
                vocabulary: 128_256,
                attention: (6144, 4096),
                intermediate: 28_672,
                experts: 1,
            },
        ),
        (
            "Llama-3 70B",
            Shapes {
                layers: 80,
                hidden: 8192,
                vocabulary: 128_256,
                attention: (10_240, 8192),
                intermediate: 57_344,
                experts: 1,
            },
        ),
        (
            "Qwen3-30B-A3B",
            Shapes {
                layers: 48,
                hidden: 2048,
                vocabulary: 151_936,
                attention: (5120, 4096),
                intermediate: 1536,
                experts: 128,
            },
        ),
        (
            "DeepSeek-V3",
            Shapes {
                layers: 61,
                hidden: 7168,
                vocabulary: 129_280,
                attention: (26_688, 16_384),
                intermediate: 4096,
                experts: 256,
            },
        ),
    ];

    #[test]
    fn whole_models_end_within_15_percent_of_the_lower_bound() {
        for (name, shapes) in &MODELS {
            for tp in [1, 8] {
                let mut lengths = shapes.lengths(tp);
                lengths.sort_unstable();
                for (threads, speeds) in [2, 8, 64].into_iter().flat_map(|n| [(n, AVX512), (n, SHANI)]) {
                    let bound = lower_bound(&lengths, 0, threads, &speeds);
                    // The clock ticks some thousand times, whatever the size.
                    let unit = bound * speeds.single / 2000.0;
                    let found = makespan(&lengths, threads, &speeds, unit) * unit / bound;
                    println!("{name} tp {tp} on {threads} threads of {} lanes: {found:.3}", speeds.wide_lanes);
                    assert!((0.999..=1.15).contains(&found), "{name} tp {tp} on {threads} threads: {found:.3}");
                }
            }
        }
    }

    #[test]
    fn the_bound_is_the_known_one_in_simple_cases() {
        let bound = |lengths: &[u64], threads| lower_bound(lengths, 0, threads, &AVX512);
        let near =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.002, "{found} for {expected}");
        // One message runs alone at the speed of one; many equal ones fill all lanes.
        near(bound(&[1000], 8), 1000.0);
        near(bound(&[1000; 1600], 2), 1_600_000.0 / 7.0);
        // Two equal messages on one thread run fast together; the bound forgets that each is slower then.
        assert!((0.99 * 2000.0 / 1.9..=2000.0 / 1.9).contains(&bound(&[1000, 1000], 1)));
    }

    #[test]
    fn full_lanes_are_not_given_up_where_nothing_is_faster() {
        let (_, wide, fast, single) = MEASURED[0];
        let forced = Speeds { wide_lanes: 16, wide, fast_lanes: 16, fast, single };
        for threads in [1, 2, 4] {
            let mut pool = Pool::new(vec![(1 << 30, ()); 16 * threads], threads, forced);
            assert!((0..threads).all(|_| pool.take().len() == 16), "{threads} threads");
        }
    }

    #[test]
    fn few_messages_are_shared_by_all_threads() {
        let taken = |messages: usize, threads| Pool::new(vec![(100, ()); messages], threads, AVX512).take().len();
        assert_eq!(taken(0, 4), 0);
        assert_eq!(taken(1, 4), 1);
        assert_eq!(taken(4, 4), 2);
        assert_eq!(taken(1000, 4), 16);
    }
}
