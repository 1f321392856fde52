//! expect: what every rank must hold after loading, told by a plan and a checkpoint.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::time::Instant;

use super::Options;
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::hash;
use crate::memory::Memory;
use crate::plan::apply::{self, Data, Planned};
use crate::plan::audit::{Work, is_written};
use crate::plan::{Origin, Parameter, Piece, Plan, Tensor};
use crate::progress::Progress;
use crate::rank::Rank;
use crate::reader::Logical;
use crate::report::ChecksumReport;
use crate::status::{self, Error, Status};
use crate::view::TensorView;

/// Where the tensors are that a plan reads.
#[derive(Clone, Copy)]
pub enum Sources<'a> {
    /// In a folder of safetensors files, or in one such file.
    Files(&'a Path),
    /// In memory, by their names; more than the plan names are fine.
    Memory(&'a [TensorView<'a>]),
}

/// The digest of every parameter of every rank whose bytes the JSON text `plan` determines, in its order.
///
/// Left out are parameters that arithmetic made, and those with elements that no piece writes; and, with a warning in the
/// log, those that this library cannot put together. What several ranks hold alike is hashed once.
///
/// # Errors
/// `BadPlan` when the plan is wrong or determines nothing; `BadCheckpoint`; `MissingSource` and `SourceMismatch` for a tensor
/// that is read; `Cancelled` by the progress callback.
pub fn expect(plan: &str, sources: Sources<'_>, options: &Options<'_>) -> status::Result<ChecksumReport> {
    let started = Instant::now();
    let plan = Plan::parse(plan)?;
    let wanted = Wanted::of(&plan)?;
    let checkpoint = match sources {
        Sources::Files(path) => Some(Checkpoint::open(path)?),
        Sources::Memory(_) => None,
    };
    let views = match sources {
        Sources::Memory(views) => views.iter().map(|view| (view.name(), view)).collect(),
        Sources::Files(_) => HashMap::new(),
    };
    let mut data: Vec<Option<Data<'_>>> = vec![None; plan.sources.len()];
    for index in wanted.sources() {
        let source = &plan.sources[index];
        let found = match &checkpoint {
            Some(checkpoint) => in_files(source, checkpoint),
            None => in_memory(source, &views),
        };
        data[index] = Some(found?);
    }
    let planned = wanted.unique.iter().map(|parameter| {
        let data = |index: usize| data[index].expect("all sources of the parameters wanted were looked up");
        Planned::new(parameter, data).map_err(|what| {
            Error::new(Status::BadPlan, format!("the plan, parameter '{}': {what}", parameter.tensor.name))
        })
    });
    let planned = planned.collect::<status::Result<Vec<_>>>()?;
    let total = planned.iter().fold(0u64, |total, planned| total.saturating_add(planned.length()));
    let progress = Progress::start(total, options.progress)?;
    let check_files = || checkpoint.as_ref().map_or(Ok(()), Checkpoint::check_unchanged);
    check_files()?;
    let tensors: Vec<&Planned<'_>> = planned.iter().collect();
    let digests = hash::digests(&tensors, options.algorithm, options.threads, &progress)?;
    check_files()?;
    progress.finish()?;
    let (keys, unique) = (wanted.keys.len(), wanted.unique.len());
    log::debug!("expect of {keys} parameters, {unique} of them different, {total} bytes: {:?}", started.elapsed());
    let checksums = wanted.keys.into_iter().map(|(key, index)| (key, digests[index])).collect();
    Ok(ChecksumReport { checksums })
}

/// Whether `plan` says where every element of `parameter` is from. An error says why this library cannot tell, or cannot
/// put it together.
fn is_determined(parameter: &Parameter, plan: &Plan, work: &mut Work) -> Result<bool, String> {
    if !parameter.is_copied() || !is_written(parameter, work)? {
        return Ok(false);
    }
    apply::check(parameter, |source| plan.sources[source].dtype).map(|()| true)
}

/// Parameters that are left out since this library cannot put them together.
#[derive(Default)]
struct Unable {
    count: usize,
    /// The key, the name and the reason of the first.
    first: Option<(String, String, String)>,
}

impl Unable {
    fn add(&mut self, rank: Rank, parameter: &Parameter, reason: &str) {
        let name = &parameter.tensor.name;
        self.count += 1;
        self.first.get_or_insert_with(|| (rank.key(name), name.clone(), reason.to_owned()));
    }

    /// Says so: who reads the digests would look for these in vain.
    fn warn(&self) {
        if let Some((key, _, reason)) = &self.first {
            let count = self.count;
            log::warn!(
                "expect leaves out {count} parameters that it cannot put together; the first is '{key}': {reason}"
            );
        }
    }

    /// That none of `count` parameters is determined.
    fn error(&self, count: usize) -> Error {
        let what = match &self.first {
            Some((_, name, reason)) => {
                format!("the plan, parameter '{name}': {reason}; the plan determines no other one either")
            }
            None => format!(
                "the plan determines no parameter: of {count}, every one has elements that are computed or that nothing \
                 writes"
            ),
        };
        Error::new(Status::BadPlan, what)
    }
}

/// What decides a parameter's bytes.
type Content<'p> = (DType, &'p [u64], &'p [Piece]);

/// The parameters that a plan determines.
struct Wanted<'p> {
    /// (key, index in `unique`), in the order of the plan.
    keys: Vec<(String, usize)>,
    /// Each dtype, shape and pieces once.
    unique: Vec<&'p Parameter>,
}

impl<'p> Wanted<'p> {
    fn of(plan: &'p Plan) -> status::Result<Self> {
        let mut wanted = Self { keys: Vec::new(), unique: Vec::new() };
        let mut known: HashMap<Content<'_>, Result<Option<usize>, String>> = HashMap::new();
        let (mut unable, mut work) = (Unable::default(), Work::default());
        for (rank, parameter) in parameters(plan) {
            let Parameter { tensor, pieces } = parameter;
            let same: Content<'_> = (tensor.dtype, &tensor.shape[..], &pieces[..]);
            let index: &Result<Option<usize>, String> = match known.entry(same) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    parameter.check_bounds(&plan.sources, rank)?;
                    let found = is_determined(parameter, plan, &mut work).map(|is_determined| {
                        let index = is_determined.then_some(wanted.unique.len());
                        wanted.unique.extend(is_determined.then_some(parameter));
                        index
                    });
                    unknown.insert(found)
                }
            };
            match index {
                Ok(index) => wanted.keys.extend(index.map(|index| (rank.key(&tensor.name), index))),
                Err(reason) => unable.add(rank, parameter, reason),
            }
        }
        if wanted.keys.is_empty() {
            return Err(unable.error(parameters(plan).count()));
        }
        unable.warn();
        Ok(wanted)
    }

    /// The indices of the sources that are read.
    fn sources(&self) -> impl Iterator<Item = usize> + '_ {
        let pieces = self.unique.iter().flat_map(|parameter| &parameter.pieces);
        pieces.filter_map(|piece| match piece.origin {
            Origin::Source { source, .. } => Some(source),
            _ => None,
        })
    }
}

fn parameters(plan: &Plan) -> impl Iterator<Item = (Rank, &Parameter)> {
    plan.ranks.iter().flat_map(|rank| rank.parameters.iter().map(|parameter| (rank.rank, parameter)))
}

fn in_files<'c>(source: &Tensor, checkpoint: &'c Checkpoint) -> status::Result<Data<'c>> {
    let Some((entry, bytes)) = checkpoint.get(&source.name) else {
        return Err(missing(source, format_args!("in the checkpoint '{}'", checkpoint.path().display())));
    };
    check_same(source, entry.dtype, &entry.shape)?;
    Ok(Data::new(Memory::from(bytes), entry.dtype, None))
}

fn in_memory<'a>(source: &Tensor, views: &HashMap<&str, &'a TensorView<'a>>) -> status::Result<Data<'a>> {
    let Some(view) = views.get(source.name.as_str()) else {
        return Err(missing(source, format_args!("among the {} tensors given", views.len())));
    };
    let shape: Vec<u64> = view.shape().iter().map(|extent| extent.unsigned_abs()).collect();
    check_same(source, view.dtype(), &shape)?;
    let Some(tensor) = view.on_host() else {
        let what = "it is on a CUDA device; a plan's tensors are read in host memory: give a copy that is there";
        return Err(Error::of_tensor(Status::UnsupportedDevice, view.name(), what));
    };
    Ok(Data::new(Memory::from(tensor), view.dtype(), Some(view.layout())))
}

fn missing(source: &Tensor, place: std::fmt::Arguments<'_>) -> Error {
    let what = format!("tensor '{}', which the plan reads, is not {place}", source.name);
    Error::new(Status::MissingSource, what)
}

/// Refuses a tensor that is not what the plan was recorded with.
fn check_same(source: &Tensor, dtype: DType, shape: &[u64]) -> status::Result<()> {
    if (source.dtype, &source.shape[..]) == (dtype, shape) {
        return Ok(());
    }
    let what = format!(
        "it is {dtype} of shape {shape:?}, but {} of shape {:?} in the plan: record the plan anew with these tensors",
        source.dtype, source.shape
    );
    Err(Error::of_tensor(Status::SourceMismatch, &source.name, what))
}
