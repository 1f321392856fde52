//! audit: whether a plan places every element of the checkpoint and writes every element of every parameter.

use crate::plan::Plan;
use crate::plan::audit::{self, AuditReport};
use crate::status::Result;

/// Audits the plan document `plan`, without any tensor.
///
/// # Errors
/// `BadPlan` when the text is no plan or one without a parameter. What a plan leaves out or places wrongly is in the report, not an error.
pub fn audit(plan: &str) -> Result<AuditReport> {
    let report = audit::audit(&Plan::parse(plan)?);
    let AuditReport { ranks, parameters, pieces, .. } = report;
    let says = if report.is_complete() { "complete" } else { "not complete" };
    log::debug!("audit of {ranks} ranks, {parameters} parameters, {pieces} pieces: {says}");
    Ok(report)
}
