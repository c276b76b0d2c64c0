//! The commands that change something, with consent.

use perennial::{
    Perennial,
    entries::EntryFilter,
    locks::{Fence, LockKind, LockName},
};

use crate::{
    Consent, Failure, Result, Target,
    print::{self, time},
    show,
};

/// The entries that are meant.
enum What<'a> {
    Key(&'a str),
    Tag(&'a str),
    TagPrefix(&'a str),
    Prefix(&'a str),
}

impl<'a> What<'a> {
    /// Returns what a target stands for. Exactly one of its options is given.
    fn of(target: &'a Target) -> Self {
        if let Some(key) = &target.key {
            Self::Key(key)
        } else if let Some(tag) = &target.tag {
            Self::Tag(tag)
        } else if let Some(prefix) = &target.tag_prefix {
            Self::TagPrefix(prefix)
        } else {
            Self::Prefix(target.prefix.as_deref().unwrap_or_default())
        }
    }
}

/// The largest number of matching entries that is counted.
const COUNTED: usize = 1000;

pub(crate) async fn invalidate(site: &Perennial, target: &Target, consent: &Consent) -> Result {
    let what = matching(site, target).await?;
    if consent.dry_run {
        print::line(&print::text(&format!("Would invalidate {what}.")));
        return Ok(());
    }
    // By the time of the invalidation, a tag or a prefix may match more entries than it does now.
    if !consent.yes && target.key.is_none() {
        print::ask(&format!("Invalidate {what}? (y/N)"), "y", "--yes")?;
    }
    match What::of(target) {
        What::Key(key) => site.invalidate(key).await?,
        What::Tag(tag) => site.invalidate_tag(tag).await?,
        What::TagPrefix(prefix) => site.invalidate_tag_prefix(prefix).await?,
        What::Prefix(prefix) => site.invalidate_prefix(prefix).await?,
    }
    print::line(&print::text(&format!(
        "Invalidated {what}. Running sites know it within about a second."
    )));
    if let Some(key) = &target.key
        && show::variants(site, key).await?.is_empty()
    {
        eprintln!("Nothing is stored under this key; `perennial entries` lists the keys.");
    }
    Ok(())
}

/// Returns a description of the target, with the number of stored entries, counted up to a limit.
async fn matching(site: &Perennial, target: &Target) -> Result<String> {
    let filter = EntryFilter::new().limit(COUNTED);
    let (what, filter) = match What::of(target) {
        What::Key(key) => return Ok(format!("the key {key:?}")),
        What::Tag(tag) => (format!("the tag {tag:?}"), filter.tag(tag)),
        What::TagPrefix(prefix) => (
            format!("the tags that begin with {prefix:?}"),
            filter.tag_prefix(prefix),
        ),
        What::Prefix("") => ("everything".to_owned(), filter),
        What::Prefix(prefix) => (format!("the prefix {prefix:?}"), filter.prefix(prefix)),
    };
    let page = site.entries(&filter).await?;
    let matching = page.entries.len();
    let more = if page.next.is_some() { "at least " } else { "" };
    Ok(format!("{what} ({more}{matching} stored entries)"))
}

pub(crate) async fn purge(site: &Perennial, target: &Target, consent: &Consent) -> Result {
    let mut what = matching(site, target).await?;
    if let Some(key) = &target.key {
        let variants = show::variants(site, key).await?;
        if variants.is_empty() {
            return Err(show::missing(key));
        }
        let bytes: u64 = variants.iter().map(|entry| entry.bytes).sum();
        what = match variants.len() {
            1 => format!("{:?} ({bytes} bytes)", variants[0].key),
            count => format!("{key:?} in {count} variants ({bytes} bytes)"),
        };
    }
    if consent.dry_run {
        print::line(&print::text(&format!("Would purge {what}.")));
        return Ok(());
    }
    if !consent.yes {
        let question = format!("Purge {what}? The next visitors wait for a new version. (y/N)");
        print::ask(&question, "y", "--yes")?;
    }
    match What::of(target) {
        What::Key(key) => site.purge(key).await?,
        What::Tag(tag) => site.purge_tag(tag).await?,
        What::TagPrefix(prefix) => site.purge_tag_prefix(prefix).await?,
        What::Prefix(prefix) => site.purge_prefix(prefix).await?,
    }
    print::line(&print::text(&format!("Purged {what}.")));
    Ok(())
}

pub(crate) async fn unlock(
    site: &Perennial,
    name: &str,
    kind: LockKind,
    fence: Fence,
    confirmed: Option<&str>,
) -> Result {
    let lock = LockName::of(kind, name);
    let locks = site.locks();
    let Some(info) = locks.inspect(lock.clone()).await? else {
        return Err(Failure::Missing(format!("there is no lock {name:?}")));
    };
    let moved = || {
        Failure::Refused(format!(
            "the lock {name:?} has another fence than {fence} by now: somebody else holds it, or it was released. Nothing was done"
        ))
    };
    if info.fence != fence {
        return Err(moved());
    }
    let holder = info.holder.map_or_else(
        || "nobody".to_owned(),
        |holder| match holder.action.as_str() {
            "" => holder.label,
            action => format!("{} ({action})", holder.label),
        },
    );
    if confirmed != Some(name) {
        let question = format!(
            "{name:?} is held by {holder} for {}. The holder may still be at work, and is only stopped where the work checks the fence. \
             Type the name to take the lock away:",
            time(info.age)
        );
        print::ask(&question, name, &format!("--confirm={name:?}"))?;
    }
    if locks.break_lock(lock, Some(fence)).await? {
        print::line(&print::text(&format!("Took {name:?} from {holder}.")));
        if kind == LockKind::Page {
            print::line(
                "Processes that know of a cooldown wait until its end; `perennial purge` ends it for all.",
            );
        }
        Ok(())
    } else {
        Err(moved())
    }
}
