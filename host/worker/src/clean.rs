//! After a request: nothing of it may be left, and that is looked at, not hoped.

use crate::beside::beside;
use crate::helper::{self, Action, Helper, Order};
use crate::snapshot::Snapshot;
use crate::tree::Place;
use crate::{processes, remove, shared};
use std::path::Path;
use std::process::Stdio;

/// Ends processes, takes the tree apart, empties the directories as their user and looks at what remains.
/// Returns what isn't clean, one line each.
pub(crate) fn clean(place: &Place, uid: Option<u32>, base: &Snapshot, repo: &Path) -> Vec<String> {
    let mut unclean = end_processes(uid).err().unwrap_or_default();
    unclean.extend(place.unmount().err());
    // Without the power to override permissions only their owner can empty the directories of the request's user.
    let action = Action::Wipe { directories: place.written(), shared: shared::directories() };
    let wiping = Helper::start(&Order { uid, sandbox: None, action }, Stdio::null(), Stdio::null());
    // Nothing but this helper is started any more, so who still lives can be looked for meanwhile; and nothing of the
    // request is in the base.
    let helper = wiping.as_ref().ok().map(|helper| helper.pid);
    let (after, living) = beside(|| Snapshot::take(repo), || processes::living(uid, helper));
    match wiping.map_err(|error| format!("a helper can't be started: {error}")).and_then(helper::finish) {
        Ok(answer) => unclean.extend(answer.notes),
        Err(error) => unclean.push(format!("cleaning as the request's user: {error}")),
    }
    unclean.extend(remove::entry(place.root()).err());
    unclean.extend(uid.map(shared::left_by).unwrap_or_default());
    match after {
        Ok(after) => unclean.extend(base.differences(&after)),
        Err(error) => unclean.push(format!("the base tree can't be looked at: {error}")),
    }
    match living {
        Ok(living) => unclean.extend(living),
        Err(error) => unclean.push(format!("the process table can't be read: {error}")),
    }
    unclean
}

/// Ends all processes of the request.
///
/// # Errors
/// What is still there.
pub(crate) fn end_processes(uid: Option<u32>) -> Result<(), Vec<String>> {
    processes::end_all(uid, || {
        // One signal to all at once catches what forks faster than it is found.
        let _ = helper::call(&Order { uid, sandbox: None, action: Action::End });
    })
}
