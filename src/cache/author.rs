//! The author of a change, for read-your-writes further down the call stack. Code that runs in the visitor's
//! own task (the function of a hole, or a handler whose response is not stored) may ask for
//! [content](crate::Perennial::content), and then gets content that shows the author's change. Content that a
//! generator asks for is for everybody. A generator runs in a task of its own, in which the author is not
//! known.

use perennial_store::Epoch;

use crate::cache::parts::SiteId;

tokio::task_local! {
    static AUTHOR: (SiteId, Epoch);
}

/// Runs the code of a visitor who has to see all invalidations up to this epoch of the site.
pub(crate) async fn scope<F: Future>(site: SiteId, min_epoch: Epoch, run: F) -> F::Output {
    AUTHOR.scope((site, min_epoch), run).await
}

/// Runs the future for the same author as this task does, even if another task polls it.
pub(crate) fn carried<F: Future>(run: F) -> impl Future<Output = F::Output> {
    let author = AUTHOR.try_with(|author| *author).ok();
    async move {
        match author {
            Some((site, min_epoch)) => scope(site, min_epoch, run).await,
            None => run.await,
        }
    }
}

/// Returns the epoch that this task's visitor has to see, or [`Epoch::NONE`] for a visitor who has changed nothing.
pub(crate) fn min_epoch(site: SiteId) -> Epoch {
    let author = AUTHOR.try_with(|author| *author).ok();
    let of_site = author.filter(|(of, _)| *of == site);
    of_site.map_or(Epoch::NONE, |(_, epoch)| epoch)
}
