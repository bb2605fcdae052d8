//! Making parts ready: from a context binary on disk, or lowered, built and finalised; then checked on samples.

use std::sync::Arc;

use llada_npu_ffi::qnn::Error;

use super::super::cache::{ContextKey, KeyHasher};
use super::super::check::{self, Example, Reference, Rows, Sums};
use super::super::engine::{Draft, GraphElements, Identity, Made, Refusal};
use super::super::part::Form;
use super::super::weight::{QnnType, Weight};
use super::live::{Binary, BinaryBytes, Held};
use super::run::Input;
use super::{PartError, Ready, Session, Unit};
use crate::device::{Dense, DenseKind, DenseWeight, ReadWeight};
use crate::knobs::Linear;
use crate::sync::lock;

/// A context that parts are taken from.
pub(super) struct Source {
    pub(super) made: Made,
    pub(super) held: Held,
    pub(super) key: ContextKey,
    /// It came from disk.
    pub(super) is_loaded: bool,
}

/// Why a part is not ready: for good (`None`), or within a budget of at most so many bytes.
pub(super) type Refused = Option<u64>;

/// The parts of a segment, or why one is not ready.
pub(super) type Whole = Result<Arc<Vec<Ready>>, Refused>;

impl PartError {
    /// Tells whom it is refused to.
    pub(super) fn refused(&self) -> Refused {
        match self {
            Self::TooLarge { budget_bytes, .. } => Some(*budget_bytes),
            // Who has no budget does not ask for it again.
            Self::NoBinary => Some(u64::MAX),
            _ => None,
        }
    }
}

impl Session {
    /// Makes a group of parts ready, in one context, or tells why not.
    pub(super) fn make(
        &self,
        group: &[Unit],
        segments: &[Dense],
        read: &mut ReadWeight<'_>,
        budget_bytes: Option<u64>,
    ) -> Vec<Result<Ready, Refused>> {
        let mut results: Vec<Result<Ready, Refused>> = vec![Err(None); group.len()];
        let mut left: Vec<usize> = (0..group.len()).collect();
        // Whether a file may be taken: one whose graphs compute wrong numbers is made anew, once.
        let mut may_load = true;
        while !left.is_empty() {
            let units: Vec<&Unit> = left.iter().map(|&i| &group[i]).collect();
            let source = match self.context(&units, segments, read, may_load, budget_bytes) {
                Ok(source) => source,
                Err((index, error)) => {
                    let i = left.remove(index);
                    let unit = &group[i];
                    results[i] = Err(error.refused());
                    self.refuse(&name(&segments[unit.segment], unit), &error);
                    continue;
                }
            };
            let checked = self.check(&units, segments, read, &source);
            let is_whole = checked.iter().all(Result::is_ok);
            if source.is_loaded && !is_whole {
                if let Some(cache) = &self.cache {
                    cache.discard(&source.key);
                }
                if self.is_alive() {
                    self.tell_wrong(&source.key);
                    may_load = false;
                    continue;
                }
            }
            let is_right: Vec<bool> = checked.iter().map(Result::is_ok).collect();
            if is_whole {
                if !source.is_loaded {
                    self.store(&source, budget_bytes.is_some());
                }
                let laid_aside = budget_bytes.map(|bytes| self.lay_aside(&source.held, bytes));
                if let Some(Err(error)) = laid_aside {
                    for i in left {
                        let unit = &group[i];
                        results[i] = Err(error.refused());
                        self.refuse(&name(&segments[unit.segment], unit), &error);
                    }
                    return results;
                }
            }
            for (&i, checked) in left.iter().zip(checked) {
                match checked {
                    Ok(ready) if is_whole => results[i] = Ok(ready),
                    Ok(_made_anew) => {}
                    Err(error) => {
                        let unit = &group[i];
                        self.refuse(&name(&segments[unit.segment], unit), &error);
                    }
                }
            }
            if is_whole {
                return results;
            }
            // Without those that are wrong, in a context that can be written.
            let mut is_right = is_right.into_iter();
            left.retain(|_| is_right.next() == Some(true));
        }
        results
    }

    /// Loads or builds a context; the error says which of the parts is to blame.
    fn context(
        &self,
        units: &[&Unit],
        segments: &[Dense],
        read: &mut ReadWeight<'_>,
        may_load: bool,
        budget_bytes: Option<u64>,
    ) -> Result<Source, (usize, PartError)> {
        self.free_unused();
        self.must_answer()?;
        let size_bytes: usize = units.iter().map(|unit| unit.size_bytes).sum();
        if let Some(budget_bytes) = budget_bytes
            && size_bytes as u64 > budget_bytes
        {
            let size_bytes = size_bytes as u64;
            return Err((
                0,
                PartError::TooLarge {
                    size_bytes,
                    budget_bytes,
                },
            ));
        }
        let key = self.key(units, segments, read)?;
        if may_load && let Some((made, bytes)) = self.load(&key, units.len()) {
            let held = self.contexts.hold(made.context, budget_bytes.is_none());
            held.set_size((*bytes).as_ref().len() as u64);
            if budget_bytes.is_some() {
                let key = key.clone();
                held.residence().binary = Some(Binary { key, bytes });
            }
            return Ok(Source {
                made,
                held,
                key,
                is_loaded: true,
            });
        }
        let mut drafts = Vec::new();
        for (i, unit) in units.iter().enumerate() {
            self.must_answer()?;
            let weights = self.lower(unit, &segments[unit.segment], read);
            drafts.push(Draft {
                name: graph_name(i),
                kind: unit.part.kind,
                weights: weights.map_err(|error| (i, error))?,
                form: self.form(unit),
            });
        }
        let built = self
            .worker
            .call(move |engine, beat| engine.build(&drafts, beat));
        let made = match built {
            Ok(Ok(made)) => made,
            Ok(Err(Refusal { index, error })) => return Err((index, error.into())),
            Err(gone) => return Err((0, gone.into())),
        };
        let mut report = lock(&self.report);
        report.n_graphs_built += made.graphs.len() as u64;
        report.finalize += made.finalize;
        Ok(Source {
            held: self.contexts.hold(made.context, budget_bytes.is_none()),
            made,
            key,
            is_loaded: false,
        })
    }

    /// Fails where the library does not answer any more: weights are not read and lowered for nobody.
    fn must_answer(&self) -> Result<(), (usize, PartError)> {
        self.worker
            .gone()
            .map_or(Ok(()), |gone| Err((0, gone.into())))
    }

    fn form(&self, unit: &Unit) -> Form {
        Form {
            n_rows: unit.room,
            linear: self.settings.linear,
            ranks: unit.part.weights.iter().map(|part| part.rank).collect(),
            vtcm_mb: self.settings.vtcm_mb,
        }
    }

    /// Says that a context from disk computes wrong numbers.
    pub(super) fn tell_wrong(&self, key: &ContextKey) {
        self.warn(format_args!(
            "context binary {}: wrong results; it is made anew",
            key.hex()
        ));
    }

    /// Starts what says what a context is good for: library and chip.
    pub(super) fn key_hasher(&self) -> KeyHasher {
        let mut hasher = KeyHasher::new();
        let Identity {
            core_version,
            backend_version,
            build_id,
            soc,
            ..
        } = &self.identity;
        hasher.bytes(format!("{core_version} {backend_version} {build_id} {soc:?}").as_bytes());
        hasher
    }

    /// Says what a context of these parts is good for.
    fn key(
        &self,
        units: &[&Unit],
        segments: &[Dense],
        read: &mut ReadWeight<'_>,
    ) -> Result<ContextKey, (usize, PartError)> {
        let mut hasher = self.key_hasher();
        for (i, unit) in units.iter().enumerate() {
            let (tier, form) = (self.settings.tier, self.form(unit));
            hasher.bytes(format!("{:?} {tier:?} {form:?}", unit.part).as_bytes());
            for part in &unit.part.weights {
                let weight = &segments[unit.segment].weights[part.index];
                for number in [weight.ggml_type as usize, weight.k, weight.n] {
                    hasher.number(number as u64);
                }
                let mut is_read = false;
                with_rows(weight, &part.rows, read, &mut |bytes| {
                    hasher.bytes(bytes);
                    is_read = true;
                });
                if !is_read {
                    return Err((i, PartError::Unreadable));
                }
            }
        }
        Ok(hasher.finish())
    }

    /// Loads a context binary, if there is one that is whole.
    pub(super) fn load(&self, key: &ContextKey, n_graphs: usize) -> Option<(Made, BinaryBytes)> {
        let cache = self.cache.as_ref()?;
        let bytes: BinaryBytes = Arc::new(cache.map(key)?);
        let (theirs, key_bytes) = (Arc::clone(&bytes), key.bytes().to_vec());
        let loaded = self.loader.call(move |loader, beat| {
            let made = loader.load(None, (*theirs).as_ref(), &key_bytes, beat)?;
            if made.graphs.len() == n_graphs {
                return Ok(made);
            }
            loader.free(made.context);
            Err(Error::Binary("not as many graphs as asked for"))
        });
        match loaded {
            Ok(Ok(made)) => {
                lock(&self.report).n_graphs_loaded += n_graphs as u64;
                Some((made, bytes))
            }
            Ok(Err(error)) => {
                self.warn(format_args!(
                    "context binary {}: {error}; it is made anew",
                    key.hex()
                ));
                cache.discard(key);
                None
            }
            // The file may be why.
            Err(_gone) => {
                cache.discard(key);
                None
            }
        }
    }

    /// Writes the binary of a context whose graphs are right, if that can be; `keeps` says that the context will be made from it again.
    pub(super) fn store(&self, source: &Source, keeps: bool) {
        if self.cache.is_none() && !keeps {
            return;
        }
        let (key, context) = (&source.key, source.made.context);
        let key_bytes = key.bytes().to_vec();
        let binary = self
            .worker
            .call(move |engine, _| engine.binary(context, &key_bytes));
        let bytes = match binary {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                log::debug!("QNN: context binary {}: {error}", key.hex());
                return;
            }
            Err(_gone) => return,
        };
        source.held.set_size(bytes.len() as u64);
        let mut written = None;
        if let Some(cache) = &self.cache {
            match cache.write(key, &bytes) {
                Ok(()) => written = Some(cache),
                Err(error) => log::debug!("QNN: context binary {}: {error}", key.hex()),
            }
        }
        if keeps {
            // On disk it takes no memory of the process.
            let mapped = written.and_then(|cache| cache.map(key));
            let bytes: BinaryBytes = match mapped {
                Some(mapped) => Arc::new(mapped),
                None => Arc::new(bytes),
            };
            let key = key.clone();
            source.held.residence().binary = Some(Binary { key, bytes });
        }
    }

    fn lower(
        &self,
        unit: &Unit,
        segment: &Dense,
        read: &mut ReadWeight<'_>,
    ) -> Result<Vec<Weight>, PartError> {
        let mut weights = Vec::new();
        for part in &unit.part.weights {
            let weight = &segment.weights[part.index];
            let ty = QnnType::from_ggml_type(weight.ggml_type).expect("only such are wanted");
            let mut lowered = None;
            with_rows(weight, &part.rows, read, &mut |bytes| {
                let n = part.rows.len();
                lowered = Some(Weight::lower(ty, self.settings.tier, weight.k, n, bytes));
            });
            let lowered = lowered.ok_or(PartError::Unreadable)??;
            weights.push(match self.settings.linear {
                Linear::FullyConnected => lowered,
                Linear::Conv => lowered.transposed(),
            });
        }
        Ok(weights)
    }

    /// Runs every part once and compares samples.
    fn check(
        &self,
        units: &[&Unit],
        segments: &[Dense],
        read: &mut ReadWeight<'_>,
        source: &Source,
    ) -> Vec<Result<Ready, PartError>> {
        let graphs = units.iter().zip(&source.made.graphs).enumerate();
        let check = |(graph, (unit, elements)): (usize, (&&Unit, &GraphElements))| {
            let ready = Ready {
                part: unit.part.clone(),
                elements: elements.clone(),
                context: source.held.clone(),
                graph,
            };
            let nmse = self.check_part(&ready, unit, &segments[unit.segment], read)?;
            let mut report = lock(&self.report);
            report.worst_nmse = report.worst_nmse.max(nmse);
            Ok(ready)
        };
        graphs.map(check).collect()
    }

    fn check_part(
        &self,
        ready: &Ready,
        unit: &Unit,
        segment: &Dense,
        read: &mut ReadWeight<'_>,
    ) -> Result<f64, PartError> {
        let (room, k) = (unit.room, segment.weights[0].k);
        let x = check::input(room, k);
        let rows = check::rows(room);
        let mut additions: Vec<Option<Example>> = vec![None; segment.weights.len()];
        for part in unit.part.weights.iter().filter(|part| part.rank > 0) {
            let weight = &segment.weights[part.index];
            additions[part.index] = Some(Example::new(part.index, weight.k, weight.n, part.rank));
        }
        let mut reference = Reference::products(&x, k, &rows);
        if segment.kind == DenseKind::FeedForward {
            let (gate, up) = (&segment.weights[0], &segment.weights[1]);
            let gate_bytes = copy_of(gate, read)?;
            let up_bytes = copy_of(up, read)?;
            let [of_gate, of_up, ..] = additions.as_mut_slice() else {
                unreachable!("a feed-forward part has three weights");
            };
            reference = reference.feed_forward(
                (&of(gate, &gate_bytes), of_gate.as_mut()),
                (&of(up, &up_bytes), of_up.as_mut()),
            );
        }
        let mut expected = Vec::new();
        for (i, (_, columns)) in ready.part.outputs().enumerate() {
            let at = check::last_weight(&ready.part, i);
            let weight = &segment.weights[at];
            let mut samples = None;
            read(weight.node, &mut |bytes| {
                let addition = additions[at].as_mut();
                samples = Some(reference.samples(&of(weight, bytes), columns, addition));
            });
            expected.push(samples.ok_or(PartError::Unreadable)?);
        }
        let factors: Vec<_> = additions
            .iter()
            .map(|addition| addition.as_ref().map(Example::factors))
            .collect();
        let input = Input::new(x, k);
        let results = self.execute(std::slice::from_ref(ready), &input, room, &factors)?;
        let results = results.ok_or(PartError::Wrong {
            nmse: f64::INFINITY,
            max: 0.0,
        })?;
        let max = check::max_nmse(segment.kind, self.settings.tier);
        let mut worst: f64 = 0.0;
        let outputs = ready.part.outputs().zip(&results[0]).zip(&expected);
        for (((_, columns), result), expected) in outputs {
            let n = columns.len();
            let sampled = rows.iter().map(|row| &result[row * n..][..n]);
            let mut sums = Sums::default();
            expected.compare(sampled, columns.start, &mut sums);
            let nmse = sums.nmse();
            if nmse > max {
                return Err(PartError::Wrong { nmse, max });
            }
            worst = worst.max(nmse);
        }
        Ok(worst)
    }
}

fn graph_name(i: usize) -> String {
    format!("g{i}")
}

/// Names a part for people.
fn name(segment: &Dense, unit: &Unit) -> String {
    let weight = &segment.weights[unit.part.weights[0].index];
    let kind = match segment.kind {
        DenseKind::Products => "a product",
        DenseKind::FeedForward => "a feed-forward part",
    };
    let ty = QnnType::from_ggml_type(weight.ggml_type).map_or("?", QnnType::name);
    format!(
        "{kind} ({ty} {}x{}, {} rows)",
        weight.n, weight.k, unit.room
    )
}

/// Lends the bytes of some rows of a weight.
fn with_rows(
    weight: &DenseWeight,
    rows: &std::ops::Range<usize>,
    read: &mut ReadWeight<'_>,
    body: &mut dyn FnMut(&[u8]),
) {
    read(weight.node, &mut |bytes| {
        let size = bytes.len() / weight.n;
        body(&bytes[rows.start * size..rows.end * size]);
    });
}

fn copy_of(weight: &DenseWeight, read: &mut ReadWeight<'_>) -> Result<Vec<u8>, PartError> {
    let mut copy = None;
    read(weight.node, &mut |bytes| copy = Some(bytes.to_vec()));
    copy.ok_or(PartError::Unreadable)
}

fn of<'a>(weight: &'a DenseWeight, bytes: &'a [u8]) -> Rows<'a> {
    Rows {
        weight,
        ty: QnnType::from_ggml_type(weight.ggml_type).expect("only such are wanted"),
        bytes,
    }
}
