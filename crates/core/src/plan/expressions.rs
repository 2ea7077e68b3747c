//! Checks a definition's expressions against its resolved nodes, as far as possible before anything is dispatched. The
//! outputs of steps are not known yet, but whether an expression may read them is.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::index::StepIx;
use super::resolve::{NOTHING_STARTED, Result, Unfit, joined, refused, refused_by, refused_on};
use crate::backend::{ActionSchema, Catalogue, ParamProblem, Params, check_params_but};
use crate::expr::{Data, Scope, StepUse, Template, facts, in_path};
use crate::limits;
use crate::node::NodeRecord;
use crate::shown::shown;
use crate::spec::{Definition, ExprSite, Known, Task, Use};

/// Returns the nodes of an entry as indexes into the given nodes, or `None` when it is placed.
type Members<'r> = dyn Fn(usize) -> Option<&'r [usize]> + 'r;

pub(super) struct Expressions<'r> {
    definition: &'r Definition,
    params: &'r Params,
    nodes: &'r [Arc<NodeRecord>],
    members: &'r Members<'r>,
    /// Built for the first expression.
    context: Option<Context<'r>>,
}

struct Context<'r> {
    known: Known<'r>,
    scope: Scope,
    /// The facts of each node, cached at the first use because many steps may read them.
    facts: Vec<Option<Data>>,
    /// Whether there are few enough instances to check each of them. A run with more is refused for their number.
    looks_at_each: bool,
}

impl<'r> Expressions<'r> {
    pub(super) fn new(
        definition: &'r Definition,
        params: &'r Params,
        nodes: &'r [Arc<NodeRecord>],
        members: &'r Members<'r>,
    ) -> Self {
        Self { definition, params, nodes, members, context: None }
    }

    /// Refuses a step whose params cannot be rendered or are invalid. `schemas` are the schemas of its action that its
    /// nodes declare.
    pub(super) fn check(
        &mut self,
        at: ExprSite,
        task: &Task,
        step: StepIx,
        template: &Template,
        schemas: &[(&ActionSchema, &str)],
    ) -> Result<()> {
        let refuse = |problems: &[ParamProblem]| refused(task, step, problems);
        let problems = self.context().known.check(at, template, Use::Params);
        self.check_names(at, template, &problems, refuse)?;
        let Some(members) = (self.members)(at.entry) else {
            let builtin = Catalogue::builtin();
            let schema = builtin.action(&task.backend, &task.action).ok();
            return self.context().refuse_params(task, template, None, schema).map_err(|p| refuse(&p));
        };
        if !template.is_by_node() {
            let context = self.context();
            context.refuse_params(task, template, None, None).map_err(|p| refuse(&p))?;
            for (schema, hostname) in schemas {
                let refused = context.refuse_params(task, template, None, Some(schema));
                let declared = (schemas.len(), members.len());
                refused.map_err(|problems| refused_by(task, step, hostname, declared, &problems))?;
            }
            return Ok(());
        }
        self.check_each(members, task, step, template)
    }

    /// Refuses an entry whose items cannot be rendered.
    pub(super) fn check_items(&mut self, entry: usize, template: &Template) -> Result<()> {
        let at = ExprSite { entry, leaf: 0 };
        let problems = self.context().known.check(at, template, Use::Items);
        let whose = format!("`for_each` of `{}` is", shown(&self.definition.tasks[entry].name_or(entry)));
        self.check_names(at, template, &problems, |problems| refused_field(&whose, problems))
    }

    /// Refuses a task whose limit keys cannot be rendered.
    pub(super) fn check_keys(&mut self, at: ExprSite, task: &Task, template: &Template) -> Result<()> {
        let problems = self.context().known.check(at, template, Use::Params);
        let whose = format!("the limits of `{}` are", shown(&task.label()));
        self.check_names(at, template, &problems, |problems| refused_field(&whose, problems))
    }

    /// Refuses names that cannot exist, and names of outputs that could belong to more than one node.
    fn check_names(
        &mut self,
        at: ExprSite,
        template: &Template,
        problems: &[ParamProblem],
        refuse: impl Fn(&[ParamProblem]) -> Unfit,
    ) -> Result<()> {
        if !problems.is_empty() {
            return Err(refuse(problems));
        }
        for used in template.step_uses() {
            self.is_clear(at, &used).map_err(|(message, nodes)| {
                let (param, element) = (used.param.to_owned(), used.element.clone());
                Unfit { nodes, ..refuse(&[ParamProblem { param, element, message }]) }
            })?;
        }
        Ok(())
    }

    fn context(&mut self) -> &mut Context<'r> {
        self.context.get_or_insert_with(|| {
            let width = |entry: usize| (self.members)(entry).map_or(1, <[usize]>::len);
            let tasks = self.definition.tasks.iter().enumerate();
            let instances: usize = tasks.map(|(index, entry)| entry.leaves().len() * width(index)).sum();
            // The run has neither id nor time yet, so others stand for them.
            let run = serde_json::json!({
                "id": uuid::Uuid::nil(), "job": self.definition.name, "scheduled_at": "1970-01-01T00:00:00Z",
            });
            let (run, params) = (Data::from(&run), Data::from(self.params));
            Context {
                known: Known::of(self.definition),
                scope: Scope { run, params, node: None, steps: BTreeMap::new(), item: None, event: None },
                facts: vec![None; self.nodes.len()],
                looks_at_each: instances <= limits::INSTANCES_PER_RUN,
            }
        })
    }

    /// Checks, on every node of the reading step, that it is clear which node's outputs are meant.
    fn is_clear(
        &mut self,
        at: ExprSite,
        used: &StepUse<'_>,
    ) -> std::result::Result<(), (String, Vec<(String, String)>)> {
        let Some(step) = self.context().known.step(used.step) else { return Ok(()) };
        let Some(theirs) = (self.members)(step.entry) else { return Ok(()) };
        let (name, written) = (shown(used.step), &used.written);
        let hostname = |index: &usize| self.nodes[*index].description.hostname.as_str();
        if used.of_nodes {
            // A computed node name is only known at evaluation.
            let Some(node) = used.node else { return Ok(()) };
            if theirs.iter().any(|index| hostname(index) == node) {
                return Ok(());
            }
            return Err((format!("`{written}`: `{name}` does not run on `{}`", shown(node)), Vec::new()));
        }
        if let [_] = theirs {
            return Ok(());
        }
        let (step, node) = (in_path(used.step), theirs.first().map_or("HOSTNAME", hostname));
        let remedy = format!("choose a node: steps{step}.nodes[\"{node}\"].outputs");
        let Some(own) = (self.members)(at.entry) else {
            let count = theirs.len();
            let message =
                format!("`{written}`: `{name}` runs on {count} nodes, and this task on one; {remedy}");
            return Err((message, Vec::new()));
        };
        if std::ptr::eq(own, theirs) {
            return Ok(());
        }
        let theirs: std::collections::HashSet<usize> = theirs.iter().copied().collect();
        let lacking: Vec<&str> = own.iter().filter(|index| !theirs.contains(index)).map(hostname).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let message =
            format!("`{written}`: `{name}` does not run on {} of this task's nodes; {remedy}", lacking.len());
        let nodes = lacking.into_iter().take(limits::PROBLEMS_LISTED);
        Err((message, nodes.map(|node| (node.to_owned(), format!("does not run `{name}`"))).collect()))
    }

    fn check_each(
        &mut self,
        members: &[usize],
        task: &Task,
        step: StepIx,
        template: &Template,
    ) -> Result<()> {
        let nodes = self.nodes;
        let context = self.context();
        if !context.looks_at_each {
            return Ok(());
        }
        let mut wrong = Vec::new();
        for &index in members {
            let node = &nodes[index];
            // A node without the action is refused elsewhere.
            let Some(schema) = node.description.action(&task.backend, &task.action) else { continue };
            let facts = context.facts[index].get_or_insert_with(|| Data::from(&facts(node))).clone();
            if let Err(problems) = context.refuse_params(task, template, Some(facts), Some(schema)) {
                wrong.push((node.description.hostname.clone(), joined(&problems)));
                if wrong.len() == limits::PROBLEMS_LISTED {
                    break;
                }
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        if let [(hostname, why)] = wrong.as_slice() {
            return Err(refused_on(task, step, hostname, why.clone()));
        }
        let at_least = if wrong.len() == limits::PROBLEMS_LISTED { "at least " } else { "" };
        let (label, count) = (task.label(), wrong.len());
        let message =
            format!("step {step} ({label}) is refused on {at_least}{count} of its nodes{NOTHING_STARTED}");
        Err(Unfit { message, nodes: wrong })
    }
}

/// Refuses a field whose expressions are invalid.
fn refused_field(whose: &str, problems: &[ParamProblem]) -> Unfit {
    let why = problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("; ");
    Unfit { message: format!("{whose} refused: {why}{NOTHING_STARTED}"), nodes: Vec::new() }
}

impl Context<'_> {
    /// Renders the params that can be rendered before steps have run, and checks them.
    fn refuse_params(
        &mut self,
        task: &Task,
        template: &Template,
        node: Option<Data>,
        schema: Option<&ActionSchema>,
    ) -> std::result::Result<(), Vec<ParamProblem>> {
        self.scope.node = node;
        let mut params = template.render_early(&self.scope).map_err(|problem| vec![problem])?;
        let Some(schema) = schema else { return Ok(()) };
        let late = template.late();
        for name in late {
            if let Some(value) = task.params.get(name) {
                params.insert(name.clone(), value.clone());
            }
        }
        check_params_but(schema, &params, |name| late.contains(name)).map(|_| ())
    }
}
