//! Runs forwards on the timelines of a machine.
//!
//! ```text
//!   NPU        |seg|seg|…|seg|        |seg|…        a segment waits for its transfers and for the segment before
//!   host map   |m|  |m|   |m|  |m|                  transfers wait for each other and for what the policy says
//!   CPU        |revision     |sample| |revision     a forward ends when both paths have, and its logits are read
//! ```
//!
//! A segment takes `dispatch + bytes / stream + operations / products` on the NPU, rows rounded up to whole tiles: there the
//! two parts do not overlap (llama.cpp #23368: a line through 113 ms at no rows). A few rows are computed by the vector units
//! while weights stream, without tiles: `dispatch + bytes / stream`. On the CPU a forward takes the longer of
//! `bytes / stream` and `operations / products`, layer by layer. Operations are `2 k n` per row and matrix and `4 n_embd_q` per
//! row and K/V slot that it sees. Reading the logits takes their bytes over the rate of copies.

use super::drive::{Forward, Plans, Rows};
use super::machine::Machine;
use super::shape::{Block, ModelShape, number};
use super::timeline::{Resource, Timeline, Work};
use crate::memory::runtime::{
    Class, Limits, Object, PlanError, Planner, Policy, Transfer, Turn, Workload,
};

/// Bytes of an activation, a key or a value: half floats.
const HALF_BYTES: u64 = 2;
/// Bytes of a logit.
const LOGIT_BYTES: u64 = 4;

/// Where forwards run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the CPU.
    Cpu,
    /// On the NPU.
    Npu {
        /// Who decides what is mapped.
        policy: Policy,
        /// Addresses that can be mapped.
        budget_bytes: u64,
        /// Whether revision rows ride in the forward of the step instead of running on the CPU.
        revision_rides: bool,
    },
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// From the first forward to the last.
    pub seconds: f64,
    /// Tokens generated.
    pub n_gen: u64,
    /// Forwards.
    pub n_forwards: u64,
    /// Rows that were asked for, and rows computed by the NPU or the CPU, those of the revision path included.
    pub n_rows: u64,
    /// See `n_rows`.
    pub n_rows_computed: u64,
    /// Rows with an output projection.
    pub n_logits: u64,
    /// Time in which the NPU waited for transfers.
    pub stall_s: f64,
    /// Time in which the forward's end waited for the revision path.
    pub revision_wait_s: f64,
    /// Bytes mapped while forwards ran, and bytes copied.
    pub mapped_bytes: u64,
    /// See `mapped_bytes`.
    pub copied_bytes: u64,
    /// Most bytes mapped at the same time.
    pub peak_bytes: u64,
    /// Bytes that a forward touches.
    pub working_set_bytes: u64,
    /// Bytes that must be moved in every forward, whoever decides.
    pub lower_bound_bytes: u64,
    /// Time to map what is mapped before the first forward: one forward's transfers from nothing. Not part of `seconds`.
    pub load_s: f64,
    /// Energy, an estimate: powers of busy parts times the time they are busy. Parts that wait take none.
    pub energy_j: f64,
    /// Who was busy when.
    pub timeline: Timeline,
}

impl Outcome {
    /// Returns tokens per second.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        number(self.n_gen) / self.seconds
    }

    /// Returns the share of the time in which the NPU was busy.
    #[must_use]
    pub fn npu_busy_share(&self) -> f64 {
        self.timeline.busy_s(Resource::Npu) / self.seconds
    }

    /// Returns the time that transfers took.
    #[must_use]
    pub fn transfer_s(&self) -> f64 {
        self.timeline.busy_s(Resource::HostMap)
    }

    /// Returns the share of the transfers that hid behind other work; `None` without transfers.
    #[must_use]
    pub fn hidden_share(&self) -> Option<f64> {
        let transfer_s = self.transfer_s();
        (transfer_s > 0.0).then(|| (1.0 - self.stall_s / transfer_s).max(0.0))
    }

    /// Returns the bytes moved per forward over the least that anyone must move; `None` where that is nothing.
    #[must_use]
    pub fn bytes_over_lower_bound(&self) -> Option<f64> {
        let moved = number(self.mapped_bytes + self.copied_bytes) / number(self.n_forwards);
        (self.lower_bound_bytes > 0).then(|| moved / number(self.lower_bound_bytes))
    }
}

/// Runs the forwards of a generation.
///
/// # Errors
/// [`PlanError`] where something does not fit the address space.
pub fn run(
    shape: &ModelShape,
    plans: &Plans,
    machine: &Machine,
    placement: Placement,
) -> Result<Outcome, PlanError> {
    let mut runner = Runner {
        shape,
        machine,
        timeline: Timeline::default(),
        stall_s: 0.0,
        revision_wait_s: 0.0,
        n_rows_computed: 0,
    };
    let mut memory = match placement {
        Placement::Cpu => None,
        Placement::Npu {
            policy,
            budget_bytes,
            ..
        } => Some(Memory::new(shape, plans, machine, policy, budget_bytes)?),
    };
    let mut now = 0.0;
    for (index, forward) in (0..).zip(&plans.forwards) {
        now = match (&mut memory, placement) {
            (Some(memory), Placement::Npu { revision_rides, .. }) => {
                runner.on_npu(index, forward, revision_rides, memory, now)?
            }
            _ => runner.on_cpu(index, forward, now),
        };
    }
    Ok(runner.finish(plans, memory, now))
}

struct Runner<'a> {
    shape: &'a ModelShape,
    machine: &'a Machine,
    timeline: Timeline,
    stall_s: f64,
    revision_wait_s: f64,
    n_rows_computed: u64,
}

impl Rows {
    /// Returns the rows that enter a block.
    const fn of(&self, block: &Block) -> u64 {
        if block.is_head {
            self.n_logits
        } else {
            self.n_rows
        }
    }
}

impl Runner<'_> {
    /// Operations of a block for some rows, of which `n_tokens` enter a layer.
    fn operations(&self, block: &Block, rows: &Rows, n_rows: u64) -> f64 {
        let products = 2.0 * number(block.macs()) * number(n_rows);
        if block.is_head || rows.n_rows == 0 {
            return products;
        }
        let padding = number(n_rows) / number(rows.n_rows);
        products + 4.0 * number(self.shape.n_embd_q) * number(rows.n_seen) * padding
    }

    fn cpu_s(&self, rows: &Rows) -> f64 {
        let block_s = |block: &Block| {
            let n_rows = rows.of(block);
            if n_rows == 0 {
                return 0.0;
            }
            let bytes_s = number(block.size_bytes()) / self.machine.cpu_bytes_per_s;
            bytes_s.max(self.operations(block, rows, n_rows) / self.machine.cpu_flops_per_s)
        };
        self.shape.blocks.iter().map(block_s).sum()
    }

    fn npu_s(&self, block: &Block, rows: &Rows) -> f64 {
        let n_rows = rows.of(block);
        if n_rows == 0 {
            return 0.0;
        }
        let stream_s =
            self.machine.dispatch_s + number(block.size_bytes()) / self.machine.npu_bytes_per_s;
        if n_rows <= self.machine.vector_rows {
            return stream_s;
        }
        let padded = n_rows.next_multiple_of(self.machine.row_quantum);
        stream_s + self.operations(block, rows, padded) / self.machine.npu_flops_per_s
    }

    fn sample(&mut self, index: u32, n_logits: u64, ready: f64) -> f64 {
        let bytes = number(n_logits * self.shape.n_vocab * LOGIT_BYTES);
        let seconds = bytes / self.machine.copy_bytes_per_s;
        self.timeline
            .add(Resource::Cpu, Work::Sample, (index, 0), ready, seconds)
            .1
    }

    fn on_cpu(&mut self, index: u32, forward: &Forward, ready: f64) -> f64 {
        let all = forward.all();
        self.n_rows_computed += all.n_rows;
        let seconds = self.cpu_s(&all);
        let (_, end) = self
            .timeline
            .add(Resource::Cpu, Work::Run, (index, 0), ready, seconds);
        self.sample(index, all.n_logits, end)
    }

    fn on_npu(
        &mut self,
        index: u32,
        forward: &Forward,
        revision_rides: bool,
        memory: &mut Memory,
        ready: f64,
    ) -> Result<f64, PlanError> {
        let (dense, beside) = if revision_rides {
            (forward.all(), Rows::default())
        } else {
            (forward.dense, forward.revision)
        };
        self.n_rows_computed += self.machine.padded(dense.n_rows) + beside.n_rows;
        let mut end = ready;
        for turn in memory.planner.step_all()? {
            let segment = turn.segment.0;
            let seconds = self.npu_s(&self.shape.blocks[segment], &dense);
            let at = (index, u32::try_from(segment).expect("layers are a u32"));
            end = self.turn(&turn, at, seconds, end, memory);
        }
        let seconds = self.cpu_s(&beside);
        let (_, revised) =
            self.timeline
                .add(Resource::Cpu, Work::Revision, (index, 0), ready, seconds);
        if seconds > 0.0 {
            self.revision_wait_s += (revised - end).max(0.0);
            end = end.max(revised);
        }
        Ok(self.sample(index, dense.n_logits + beside.n_logits, end))
    }

    /// Carries out a turn: transfers, then the run. Returns when the run ends.
    fn turn(
        &mut self,
        turn: &Turn,
        at: (u32, u32),
        seconds: f64,
        ready: f64,
        memory: &mut Memory,
    ) -> f64 {
        let allowed = turn.after.map_or(0.0, |ticket| memory.run_end(ticket));
        let mut done = memory.transfers_end.max(allowed);
        for transfer in &turn.before {
            done = self.transfer(transfer, at, done, memory);
        }
        let moves = !turn.before.is_empty();
        if moves {
            memory.transfers_end = done;
        }
        let start = if moves { ready.max(done) } else { ready };
        self.stall_s += start - ready;
        let (_, end) = self
            .timeline
            .add(Resource::Npu, Work::Run, at, start, seconds);
        memory.run_ends.push(end);
        if !turn.release.is_empty() {
            let mut done = memory.transfers_end.max(end);
            for transfer in &turn.release {
                done = self.transfer(transfer, at, done, memory);
            }
            memory.transfers_end = done;
        }
        end
    }

    fn transfer(
        &mut self,
        transfer: &Transfer,
        at: (u32, u32),
        ready: f64,
        memory: &mut Memory,
    ) -> f64 {
        let (work, bytes, seconds_per_byte) = match transfer {
            Transfer::Map(piece) => {
                memory.mapped_bytes += piece.size_bytes();
                (Work::Map, piece.size_bytes(), self.machine.map_s_per_byte)
            }
            // The price of a map is that of both.
            Transfer::Unmap(_) => return ready,
            Transfer::Copy { range, .. } => {
                let bytes = range.end - range.start;
                memory.copied_bytes += bytes;
                (Work::Copy, bytes, 1.0 / self.machine.copy_bytes_per_s)
            }
        };
        let seconds = number(bytes) * seconds_per_byte;
        self.timeline
            .add(Resource::HostMap, work, at, ready, seconds)
            .1
    }

    fn finish(self, plans: &Plans, memory: Option<Memory>, seconds: f64) -> Outcome {
        let busy = |resource| self.timeline.busy_s(resource);
        let energy_j = busy(Resource::Npu) * self.machine.npu_w
            + busy(Resource::HostMap) * self.machine.host_map_w
            + busy(Resource::Cpu) * self.machine.cpu_w;
        let sum = |of: fn(&Rows) -> u64| {
            plans
                .forwards
                .iter()
                .map(|forward| of(&forward.all()))
                .sum()
        };
        let of_memory = |of: fn(&Memory) -> u64| memory.as_ref().map_or(0, of);
        Outcome {
            seconds,
            n_gen: plans.n_gen,
            n_forwards: plans.forwards.len() as u64,
            n_rows: sum(|rows| rows.n_rows),
            n_rows_computed: self.n_rows_computed,
            n_logits: sum(|rows| rows.n_logits),
            stall_s: self.stall_s,
            revision_wait_s: self.revision_wait_s,
            mapped_bytes: of_memory(|memory| memory.mapped_bytes),
            copied_bytes: of_memory(|memory| memory.copied_bytes),
            peak_bytes: of_memory(|memory| memory.planner.counters().peak_bytes),
            working_set_bytes: of_memory(|memory| memory.planner.working_set_bytes()),
            lower_bound_bytes: of_memory(|memory| memory.planner.lower_bound_bytes()),
            load_s: memory.as_ref().map_or(0.0, |memory| memory.load_s),
            energy_j,
            timeline: self.timeline,
        }
    }
}

/// The address space of a session and its clocks.
struct Memory {
    planner: Planner,
    /// Ticket of the first turn after the load, and the ends of all runs since.
    first_ticket: u64,
    run_ends: Vec<f64>,
    transfers_end: f64,
    mapped_bytes: u64,
    copied_bytes: u64,
    load_s: f64,
}

impl Memory {
    /// Plans, and maps what a first forward leaves mapped.
    fn new(
        shape: &ModelShape,
        plans: &Plans,
        machine: &Machine,
        policy: Policy,
        budget_bytes: u64,
    ) -> Result<Self, PlanError> {
        let limits = Limits {
            budget_bytes,
            ..Limits::default()
        };
        let workload = workload(shape, plans, machine);
        let mut planner = Planner::new(workload, limits, policy, machine.costs())?;
        let first = planner.step_all()?;
        let bytes = |of: fn(&Turn) -> u64| number(first.iter().map(of).sum());
        let load_s = bytes(Turn::mapped_bytes) * machine.map_s_per_byte
            + bytes(Turn::copied_bytes) / machine.copy_bytes_per_s;
        Ok(Self {
            planner,
            first_ticket: first.len() as u64,
            run_ends: Vec::new(),
            transfers_end: 0.0,
            mapped_bytes: 0,
            copied_bytes: 0,
            load_s,
        })
    }

    /// Returns when the run of a turn ended; those of the load ended before the start.
    fn run_end(&self, ticket: u64) -> f64 {
        let index = ticket
            .checked_sub(self.first_ticket)
            .and_then(|i| usize::try_from(i).ok());
        index.map_or(0.0, |index| self.run_ends[index])
    }
}

/// Returns what the forwards need mapped, block by block.
fn workload(shape: &ModelShape, plans: &Plans, machine: &Machine) -> Workload {
    let most = |of: fn(&Rows) -> u64| {
        let rows = plans.forwards.iter().map(|forward| of(&forward.all()));
        rows.max()
            .unwrap_or(0)
            .next_multiple_of(machine.row_quantum)
    };
    let (n_rows, n_logits) = (most(|rows| rows.n_rows), most(|rows| rows.n_logits));
    let short = |name: String, bytes| Object::new(name, bytes, Class::ShortLived);
    let mut workload = Workload::new();
    let residual = 2 * n_rows * shape.n_embd * HALF_BYTES;
    let residual = workload.add_object(short("residual stream".to_owned(), residual));
    for block in &shape.blocks {
        let mut needs = vec![residual];
        if !machine.weights_by_dma {
            needs.extend(block.matrices.iter().map(|matrix| {
                workload.add_object(Object::new(
                    &matrix.name,
                    matrix.size_bytes,
                    Class::LongLived,
                ))
            }));
        }
        if block.is_head {
            let bytes = n_logits * shape.n_vocab * LOGIT_BYTES;
            needs.push(workload.add_object(short("logits".to_owned(), bytes)));
        } else {
            let kv = 2 * plans.n_slots * shape.n_embd_kv * HALF_BYTES;
            let row = 2 * (shape.n_embd_q + shape.n_embd_kv + shape.n_ff) * HALF_BYTES;
            let name = |what| format!("{what} of {}", block.name);
            needs.push(workload.add_object(Object::state(name("K and V"), kv)));
            needs.push(workload.add_object(short(name("activations"), n_rows * row)));
        }
        workload.add_segment(&block.name, needs);
    }
    workload
}
