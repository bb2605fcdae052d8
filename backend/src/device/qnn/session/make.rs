//! Making parts ready: from a context binary on disk, or lowered, built and finalised; then checked on samples.

use super::super::cache::{ContextKey, KeyHasher};
use super::super::check::{self, Example, Reference, Rows, Sums};
use super::super::engine::{Draft, GraphElements, Identity, Made, Refusal};
use super::super::part::Form;
use super::super::weight::{QnnType, Weight};
use super::live::Held;
use super::{PartError, Ready, Session, Unit, lock};
use crate::device::{Dense, DenseKind, DenseWeight, ReadWeight};
use crate::knobs::Linear;

/// A context that parts are taken from.
struct Source {
    made: Made,
    held: Held,
    key: ContextKey,
    /// It came from disk.
    is_loaded: bool,
}

impl Session {
    /// Makes a group of parts ready, in one context; `None` for each that is refused.
    pub(super) fn make(
        &self,
        group: &[Unit],
        segments: &[Dense],
        read: &mut ReadWeight<'_>,
    ) -> Vec<Option<Ready>> {
        let mut results: Vec<Option<Ready>> = vec![None; group.len()];
        let mut left: Vec<usize> = (0..group.len()).collect();
        // Whether a file may be taken: one whose graphs compute wrong numbers is made anew, once.
        let mut may_load = true;
        while !left.is_empty() {
            let units: Vec<&Unit> = left.iter().map(|&i| &group[i]).collect();
            let source = match self.context(&units, segments, read, may_load) {
                Ok(source) => source,
                Err((index, error)) => {
                    let unit = &group[left.remove(index)];
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
                    self.warn(format_args!(
                        "context binary {}: wrong results; it is made anew",
                        source.key.hex()
                    ));
                    may_load = false;
                    continue;
                }
            }
            if !source.is_loaded && is_whole {
                let size_bytes = self.store(&source.key, source.made.context);
                source.held.set_size(size_bytes);
            }
            for (i, checked) in left.into_iter().zip(checked) {
                match checked {
                    Ok(ready) => results[i] = Some(ready),
                    Err(error) => {
                        let unit = &group[i];
                        self.refuse(&name(&segments[unit.segment], unit), &error);
                    }
                }
            }
            return results;
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
    ) -> Result<Source, (usize, PartError)> {
        self.must_answer()?;
        let key = self.key(units, segments, read)?;
        if may_load && let Some((made, size_bytes)) = self.load(&key, units.len()) {
            let held = self.contexts.hold(made.context);
            held.set_size(size_bytes);
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
            held: self.contexts.hold(made.context),
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

    /// Says what a context of these parts is good for.
    fn key(
        &self,
        units: &[&Unit],
        segments: &[Dense],
        read: &mut ReadWeight<'_>,
    ) -> Result<ContextKey, (usize, PartError)> {
        let mut hasher = KeyHasher::new();
        let Identity {
            core_version,
            backend_version,
            build_id,
            soc,
            ..
        } = &self.identity;
        hasher.bytes(format!("{core_version} {backend_version} {build_id} {soc:?}").as_bytes());
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
    fn load(&self, key: &ContextKey, n_graphs: usize) -> Option<(Made, u64)> {
        let cache = self.cache.as_ref()?;
        let bytes = cache.read(key)?;
        let size_bytes = bytes.len() as u64;
        let key_bytes = key.bytes().to_vec();
        let names: Vec<_> = (0..n_graphs).map(graph_name).collect();
        let loaded = self
            .worker
            .call(move |engine, beat| engine.load(&bytes, &key_bytes, &names, beat));
        match loaded {
            Ok(Ok(made)) => {
                lock(&self.report).n_graphs_loaded += n_graphs as u64;
                Some((made, size_bytes))
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

    /// Writes the binary of a context whose graphs are right; returns its bytes.
    fn store(&self, key: &ContextKey, context: u64) -> u64 {
        let Some(cache) = self.cache.as_ref() else {
            return 0;
        };
        let key_bytes = key.bytes().to_vec();
        let binary = self
            .worker
            .call(move |engine, _| engine.binary(context, &key_bytes));
        match binary {
            Ok(Ok(bytes)) => {
                if let Err(error) = cache.write(key, &bytes) {
                    log::debug!("QNN: context binary {}: {error}", key.hex());
                }
                bytes.len() as u64
            }
            Ok(Err(error)) => {
                log::debug!("QNN: context binary {}: {error}", key.hex());
                0
            }
            Err(_gone) => 0,
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
        let results = self.execute(std::slice::from_ref(ready), &x, k, room, &factors)?;
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
