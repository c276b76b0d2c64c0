//! A breadth-first search through the states of a model: it finds the shortest way to a broken property, and
//! follows every reachable state to its end. The checks of the state machines use it: regenerations in
//! `perennial`, requests in `perennial-idempotency`.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    hash::{BuildHasher, Hash},
};

use foldhash::{fast, quality::FixedState};

/// A system of processes and a store.
pub trait Model {
    /// A normalised state: two states with the same future are equal.
    type State: Clone + Eq + Hash + fmt::Debug;
    /// What a process, the store or the surroundings do next.
    type Action: Copy + PartialEq + fmt::Debug;

    /// The state from which the search begins.
    fn start(&self) -> Self::State;

    /// Adds each possible action, faults included, with the state after the action. No two actions
    /// are equal.
    fn steps(&self, state: &Self::State, steps: &mut Steps<Self>);

    /// Tests the properties of a single state.
    fn invariant(&self, state: &Self::State) -> Result<(), Broken>;

    /// Returns the state after the step that the model chooses among those without a fault, and the cost of
    /// the step: 1 for a unit of time, or 0. `None` means that the system has settled, as it must from every
    /// state.
    fn settle(&self, state: &Self::State) -> Option<(u16, Self::State)>;

    /// The name of the property that the system settles from every state.
    const SETTLES: Broken;

    /// The limit of the sum of the costs until the system has settled.
    const PATIENCE: u16;
}

/// The name of a violated property.
pub type Broken = &'static str;

/// The steps out of one state, and a tally over all states.
pub struct Steps<M: Model + ?Sized> {
    found: Vec<Step<M>>,
    tally: Tally,
}

impl<M: Model + ?Sized> Steps<M> {
    fn new() -> Self {
        Self {
            found: Vec::new(),
            tally: Tally::new(),
        }
    }
}

type Step<M> = (<M as Model>::Action, Result<<M as Model>::State, Broken>);

type Tally = BTreeMap<&'static str, u64>;

impl<M: Model + ?Sized> Steps<M> {
    /// Adds an action and the state after it.
    pub fn to(&mut self, action: M::Action, state: M::State) {
        self.found.push((action, Ok(state)));
    }

    /// Adds an action that violates a property.
    pub fn broken(&mut self, action: M::Action, property: Broken) {
        self.found.push((action, Err(property)));
    }

    /// Counts a situation that the check has reached. A check that never reaches the situations it
    /// is about proves nothing.
    pub fn sometimes(&mut self, situation: &'static str) {
        *self.tally.entry(situation).or_default() += 1;
    }
}

/// The result of a search without a violation.
#[derive(Debug)]
pub struct Explored {
    /// There are no other states.
    pub complete: bool,
    /// The number of different states.
    pub states: usize,
    /// The number of steps from all of these states together.
    pub steps: usize,
    /// The number of steps to the farthest state.
    pub depth: usize,
    /// The highest cost until the system has settled, from any state.
    pub settled: u16,
    tally: Tally,
}

impl Explored {
    /// Panics unless each of the situations has occurred.
    pub fn reached(&self, situations: &[&str]) {
        let missing = situations
            .iter()
            .filter(|name| !self.tally.contains_key(**name));
        let missing: Vec<_> = missing.collect();
        assert!(missing.is_empty(), "never reached: {missing:?}");
    }
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            complete,
            states,
            steps,
            depth,
            settled,
            tally,
        } = self;
        let all = if *complete { "all " } else { "" };
        writeln!(
            f,
            "{all}{states} states, {steps} steps, depth {depth}, settled within {settled}"
        )?;
        tally
            .iter()
            .try_for_each(|(name, count)| writeln!(f, "{count:>10} {name}"))
    }
}

/// The shortest path to a violation of a property.
pub struct Violation<M: Model> {
    /// The property that is violated.
    pub property: Broken,
    /// The number of states that were visited before the violation was found.
    pub states: usize,
    path: Vec<(M::Action, M::State)>,
    /// The action after the path, if the violation is a step.
    last: Option<M::Action>,
    /// The schedule without faults, if the system does not settle.
    schedule: Vec<M::State>,
}

impl<M: Model> fmt::Debug for Violation<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.property)?;
        for (number, (action, state)) in (1..).zip(&self.path) {
            writeln!(f, "{number:>3}. {action:?}\n     {state:?}")?;
        }
        if let Some(action) = self.last {
            writeln!(f, "then {action:?}")?;
        }
        let mut schedule = self.schedule.iter();
        schedule.try_for_each(|state| writeln!(f, "without faults\n     {state:?}"))
    }
}

/// The same hashes in each run.
pub const HASH: FixedState = FixedState::with_seed(0);

/// The parent of the first state, which has none.
const START: u32 = u32::MAX;

/// Visits the reachable states of the model, the nearest first, until there are `enough`.
pub fn explore<M: Model>(model: &M, enough: usize) -> Result<Explored, Violation<M>> {
    let mut search = Search {
        model,
        seen: HashSet::default(),
        parents: Vec::new(),
        costs: HashMap::default(),
        settled: 0,
    };
    let mut steps = Steps::new();
    let start = model.start();
    search.seen.insert(HASH.hash_one(&start));
    search.visit(START, &start)?;
    let (mut count, mut depth, mut level) = (0, 0, vec![(START, start)]);
    while !level.is_empty() && search.seen.len() <= enough {
        let mut next = Vec::new();
        for (number, state) in level {
            model.steps(&state, &mut steps);
            for (action, state) in steps.found.drain(..) {
                count += 1;
                let state =
                    state.map_err(|property| search.violation(number, property, Some(action)))?;
                if search.seen.insert(HASH.hash_one(&state)) {
                    let child = u32::try_from(search.parents.len()).expect("fewer states");
                    search.parents.push((number, action));
                    search.visit(child, &state)?;
                    next.push((child, state));
                }
            }
        }
        depth += usize::from(!next.is_empty());
        level = next;
    }
    Ok(Explored {
        complete: level.is_empty(),
        states: search.seen.len(),
        steps: count,
        depth,
        settled: search.settled,
        tally: steps.tally,
    })
}

struct Search<'a, M: Model> {
    model: &'a M,
    seen: HashSet<u64, fast::FixedState>,
    /// For each state but the start: the number of the state before it, and the action.
    parents: Vec<(u32, M::Action)>,
    /// For each state that was visited, the number of time steps of [`Model::settle`] until the
    /// model has nothing left to do.
    costs: HashMap<u64, u16, fast::FixedState>,
    settled: u16,
}

impl<M: Model> Search<'_, M> {
    fn visit(&mut self, number: u32, state: &M::State) -> Result<(), Violation<M>> {
        let valid = self.model.invariant(state);
        valid.map_err(|property| self.violation(number, property, None))?;
        self.settles(state).map_err(|schedule| Violation {
            schedule,
            ..self.violation(number, M::SETTLES, None)
        })
    }

    /// Follows the schedule without faults to a state of known cost. The error is the schedule that
    /// takes too long.
    fn settles(&mut self, state: &M::State) -> Result<(), Vec<M::State>> {
        let (mut passed, mut current) = (Vec::new(), state.clone());
        let mut cost = loop {
            let hash = HASH.hash_one(&current);
            if let Some(cost) = self.costs.get(&hash) {
                break *cost;
            }
            let Some((cost, next)) = self.model.settle(&current) else {
                self.costs.insert(hash, 0);
                break 0;
            };
            // The schedule is in a cycle.
            if passed.len() > 1000 {
                return Err(self.schedule(state));
            }
            passed.push((hash, cost));
            current = next;
        };
        for (hash, step) in passed.into_iter().rev() {
            cost += step;
            self.costs.insert(hash, cost);
        }
        self.settled = self.settled.max(cost);
        if cost > M::PATIENCE {
            return Err(self.schedule(state));
        }
        Ok(())
    }

    fn schedule(&self, state: &M::State) -> Vec<M::State> {
        let next = |state: &M::State| self.model.settle(state).map(|(_, next)| next);
        std::iter::successors(next(state), next).take(30).collect()
    }

    /// Returns the violation with the path to a state. The path's states are found by taking its
    /// actions again, as the search has stored the actions alone.
    fn violation(
        &self,
        mut number: u32,
        property: Broken,
        last: Option<M::Action>,
    ) -> Violation<M> {
        let mut actions = Vec::new();
        while let Some((parent, action)) = self.parents.get(number as usize) {
            actions.push(*action);
            number = *parent;
        }
        let (mut state, mut path) = (self.model.start(), Vec::new());
        for action in actions.into_iter().rev() {
            let mut steps = Steps::new();
            self.model.steps(&state, &mut steps);
            let mut found = steps.found.into_iter();
            let step = found.find_map(|(by, next)| next.ok().filter(|_| by == action));
            state = step.expect("the same steps as before");
            path.push((action, state.clone()));
        }
        Violation {
            property,
            states: self.seen.len(),
            path,
            last,
            schedule: Vec::new(),
        }
    }
}
