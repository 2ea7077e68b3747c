//! Params with expressions: parsed once, rendered for each instance.

use std::collections::BTreeSet;

use minijinja::value::Value;
use minijinja::{ErrorKind, Expression};

use super::data::{Data, Scope, to_json};
use super::filters::{MACHINE, print};
use super::reference::{Part, Read, Reference, Root, read};
use crate::backend::{Element, ParamProblem, Params};
use crate::limits;
use crate::parts::{self, holds_expression};
use crate::shown::shown;

/// The param name under which `for_each` is rendered.
pub(crate) const FOR_EACH: &str = "for_each";

/// The values that the expressions of a template refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    pub params: BTreeSet<String>,
    pub steps: BTreeSet<String>,
    /// Whether they read some step's `nodes`: outputs of other nodes.
    pub step_nodes: bool,
    pub node: bool,
    pub run: bool,
    /// Whether they read the item of `for_each` or its index.
    pub item: bool,
    /// Whether they read what a message is about.
    pub event: bool,
}

/// Parsed params; rendering does not parse them again.
#[derive(Debug)]
pub struct Template {
    params: Vec<(String, Form)>,
    /// Params that use steps or items.
    late: BTreeSet<String>,
}

#[derive(Debug)]
enum Form {
    Plain(serde_json::Value),
    /// Only an expression: its value keeps its type.
    Whole(Formula),
    Text(Vec<Piece>),
    List(Vec<Form>),
    Map(Vec<(String, Form)>),
}

#[derive(Debug)]
enum Piece {
    Plain(String),
    Formula(Formula),
}

#[derive(Debug)]
pub(crate) struct Formula {
    written: String,
    expression: Expression<'static, 'static>,
    pub(crate) references: Vec<Reference>,
}

/// One use of a step in an expression.
#[derive(Clone, Debug)]
pub(crate) struct StepUse<'t> {
    pub(crate) param: &'t str,
    pub(crate) element: Option<Element>,
    pub(crate) written: String,
    pub(crate) step: &'t str,
    /// Whether its outputs are read by node name.
    pub(crate) of_nodes: bool,
    /// The node, if it is written literally.
    pub(crate) node: Option<&'t str>,
}

impl Template {
    /// Parses the params of an action; returns `None` if they contain no expression.
    pub fn of(backend: &str, action: &str, params: &Params) -> Result<Option<Self>, ParamProblem> {
        Self::but(params, read_by_a_shell(backend, action))
    }

    /// Parses the items of `for_each`; returns `None` if they contain no expression. They are rendered as the param
    /// `for_each`.
    pub(crate) fn of_items(items: &serde_json::Value) -> Result<Option<Self>, ParamProblem> {
        Self::but(&Params::from([(FOR_EACH.to_owned(), items.clone())]), None)
    }

    /// Parses the keys of limits; returns `None` if they contain no expression. Each is rendered as the param of its
    /// own name.
    pub(crate) fn of_keys<'k>(keys: impl Iterator<Item = &'k str>) -> Result<Option<Self>, ParamProblem> {
        let keys = keys.map(|key| (key.to_owned(), serde_json::Value::from(key)));
        Self::but(&keys.collect(), None)
    }

    /// Parses the params that a trigger sets; returns `None` if they contain no expression.
    pub(crate) fn of_trigger(params: &Params) -> Result<Option<Self>, ParamProblem> {
        Self::but(params, None)
    }

    fn but(params: &Params, plain: Option<&str>) -> Result<Option<Self>, ParamProblem> {
        let is_plain = |name: &str| plain == Some(name);
        if !params.iter().any(|(name, value)| !is_plain(name) && has_expression(value)) {
            return Ok(None);
        }
        let mut count = 0;
        let mut forms = Vec::with_capacity(params.len());
        for (name, value) in params {
            let form = if is_plain(name) {
                Form::Plain(value.clone())
            } else {
                form(value, &mut count).map_err(|wrong| wrong.of(name))?
            };
            forms.push((name.clone(), form));
        }
        let mut template = Self { params: forms, late: BTreeSet::new() };
        let mut late = BTreeSet::new();
        template.each(|name, _, formula| late.extend(formula.is_late().then(|| name.to_owned())));
        template.late = late;
        Ok(Some(template))
    }

    pub fn references(&self) -> References {
        let mut found = References::default();
        self.each(|_, _, formula| {
            for reference in &formula.references {
                match reference.root {
                    Root::Params => {
                        found.params.insert(reference.name().to_owned());
                    }
                    Root::Steps => {
                        found.steps.insert(reference.name().to_owned());
                        found.step_nodes |= reference.is_of_nodes();
                    }
                    Root::Node => found.node = true,
                    Root::Run => found.run = true,
                    Root::Item | Root::Index => found.item = true,
                    // Tasks cannot use them.
                    Root::Payload | Root::Trigger => {}
                    Root::Event => found.event = true,
                }
            }
        });
        found
    }

    /// Returns the params that cannot be rendered before their steps have run.
    pub(crate) fn late(&self) -> &BTreeSet<String> {
        &self.late
    }

    /// Returns whether any expression that can be evaluated before steps have run uses the node.
    pub(crate) fn is_by_node(&self) -> bool {
        let mut found = false;
        self.each(|_, _, formula| found |= formula.uses(Root::Node) && !formula.is_late());
        found
    }

    /// Returns every use of a step.
    pub(crate) fn step_uses(&self) -> Vec<StepUse<'_>> {
        let mut found = Vec::new();
        self.each(|param, element, formula| {
            let steps = formula.references.iter().filter(|reference| reference.root == Root::Steps);
            found.extend(steps.map(|reference| StepUse {
                param,
                element: element.cloned(),
                written: reference.to_string(),
                step: reference.name(),
                of_nodes: reference.is_of_nodes(),
                node: reference.node(),
            }));
        });
        found
    }

    /// Renders the params with the values of their expressions. Rendered text is not parsed again.
    pub fn render(&self, scope: &Scope) -> Result<Params, ParamProblem> {
        self.render_some(scope, |_| true)
    }

    /// Renders the params that a trigger sets.
    pub(crate) fn render_trigger(
        &self,
        trigger: &Data,
        payload: Option<&Data>,
    ) -> Result<Params, ParamProblem> {
        let payload = payload.map(|Data(payload)| ("payload", payload.clone()));
        let context = Value::from_pairs([("trigger", trigger.0.clone())].into_iter().chain(payload));
        self.render_within(Rendering { has_node: false, context, left: limits::PARAMS_BYTES }, |_| true)
    }

    /// Renders the params without steps, before steps have run. In the other params it evaluates the expressions
    /// without steps too, to find their errors.
    pub(crate) fn render_early(&self, scope: &Scope) -> Result<Params, ParamProblem> {
        let late = &self.late;
        let mut problem = None;
        if !late.is_empty() {
            let rendering = Rendering::new(scope);
            self.each(|name, element, formula| {
                if problem.is_none()
                    && late.contains(name)
                    && !formula.is_late()
                    && let Err(wrong) = rendering.value(formula)
                {
                    problem = Some(Wrong { element: element.cloned(), ..wrong }.of(name));
                }
            });
        }
        match problem {
            Some(problem) => Err(problem),
            None => self.render_some(scope, |name| !late.contains(name)),
        }
    }

    fn render_some(&self, scope: &Scope, wanted: impl Fn(&str) -> bool) -> Result<Params, ParamProblem> {
        self.render_within(Rendering::new(scope), wanted)
    }

    fn render_within(
        &self,
        mut rendering: Rendering,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Params, ParamProblem> {
        let mut rendered = Params::new();
        for (name, form) in self.params.iter().filter(|(name, _)| wanted(name)) {
            let value = rendering.form(form).map_err(|wrong| wrong.of(name))?;
            rendered.insert(name.clone(), value);
        }
        Ok(rendered)
    }

    /// Calls `look` for every expression, with its param and the element that contains it.
    pub(crate) fn each<'t>(&'t self, mut look: impl FnMut(&'t str, Option<&Element>, &'t Formula)) {
        fn walk<'t>(form: &'t Form, look: &mut dyn FnMut(&'t Formula)) {
            match form {
                Form::Plain(_) => {}
                Form::Whole(formula) => look(formula),
                Form::Text(pieces) => {
                    for piece in pieces {
                        if let Piece::Formula(formula) = piece {
                            look(formula);
                        }
                    }
                }
                Form::List(items) => items.iter().for_each(|item| walk(item, look)),
                Form::Map(entries) => entries.iter().for_each(|(_, value)| walk(value, look)),
            }
        }
        for (name, form) in &self.params {
            match form {
                Form::List(items) => {
                    for (index, item) in items.iter().enumerate() {
                        walk(item, &mut |formula| look(name, Some(&Element::Index(index)), formula));
                    }
                }
                Form::Map(entries) => {
                    for (key, value) in entries {
                        walk(value, &mut |formula| look(name, Some(&Element::Key(key.clone())), formula));
                    }
                }
                form => walk(form, &mut |formula| look(name, None, formula)),
            }
        }
    }
}

/// Returns the param that a shell reads. The shell would also interpret a value in it, and `{{` may be shell syntax.
pub(crate) fn read_by_a_shell(backend: &str, action: &str) -> Option<&'static str> {
    ((backend, action) == ("exec", "shell")).then_some("command")
}

/// Returns whether a text that is not a template looks as if it were meant to be one.
pub(crate) fn looks_like_expression(text: &str) -> bool {
    text.split("{{").skip(1).any(|inside| {
        let name: String = inside.trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
        let next = inside.trim_start()[name.len()..].chars().next();
        let root = Root::parse(&name);
        let is_alone =
            matches!(root, Some(Root::Item | Root::Index)) && matches!(next, Some(' ' | '}' | '|'));
        root.is_some() && (is_alone || matches!(next, Some('.' | '[')))
    })
}

pub(crate) fn has_expression(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
        Value::String(text) => holds_expression(text),
        Value::Array(items) => items.iter().any(has_expression),
        Value::Object(map) => map.values().any(has_expression),
    }
}

/// A problem, and the part of the param that has it.
struct Wrong {
    element: Option<Element>,
    message: String,
}

impl Wrong {
    fn new(message: impl Into<String>) -> Self {
        Self { element: None, message: message.into() }
    }

    /// Sets the element; the outermost one wins.
    fn within(self, element: Element) -> Self {
        Self { element: Some(element), ..self }
    }

    fn of(self, param: &str) -> ParamProblem {
        ParamProblem { param: param.to_owned(), element: self.element, message: self.message }
    }
}

fn form(value: &serde_json::Value, count: &mut usize) -> Result<Form, Wrong> {
    use serde_json::Value;
    if !has_expression(value) {
        return Ok(Form::Plain(value.clone()));
    }
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(Form::Plain(value.clone())),
        Value::String(text) => form_of_text(text, count),
        Value::Array(items) => {
            let within = |index| move |wrong: Wrong| wrong.within(Element::Index(index));
            let items = items.iter().zip(0..).map(|(item, index)| form(item, count).map_err(within(index)));
            Ok(Form::List(items.collect::<Result<_, _>>()?))
        }
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| {
                let value = form(value, count).map_err(|wrong| wrong.within(Element::Key(key.clone())))?;
                Ok((key.clone(), value))
            });
            Ok(Form::Map(entries.collect::<Result<_, Wrong>>()?))
        }
    }
}

fn form_of_text(text: &str, count: &mut usize) -> Result<Form, Wrong> {
    let parts = parts::parts(text).map_err(Wrong::new)?;
    let mut pieces = Vec::with_capacity(parts.len());
    for part in parts {
        pieces.push(match part {
            parts::Part::Plain(plain) => Piece::Plain(plain.to_owned()),
            parts::Part::Expression(source) => {
                *count += 1;
                let most = limits::EXPRESSIONS_PER_TASK;
                if *count > most {
                    return Err(Wrong::new(format!("the params of a task hold at most {most} expressions")));
                }
                Piece::Formula(Formula::of(source)?)
            }
        });
    }
    Ok(match <[Piece; 1]>::try_from(pieces) {
        Ok([Piece::Formula(formula)]) => Form::Whole(formula),
        Ok([piece]) => Form::Text(vec![piece]),
        Err(pieces) => Form::Text(pieces),
    })
}

impl Formula {
    /// Returns whether it cannot be evaluated before its step is due.
    fn is_late(&self) -> bool {
        self.references.iter().any(|reference| reference.root.is_late())
    }

    fn uses(&self, root: Root) -> bool {
        self.references.iter().any(|reference| reference.root == root)
    }

    fn of(source: &str) -> Result<Self, Wrong> {
        let written = source.trim();
        let refuse = |why: &str| Wrong::new(format!("in `{{{{ {} }}}}`: {why}", shown(written)));
        let Read { references, source } = read(written).map_err(|why| refuse(&why))?;
        let compiled = |source: String| {
            let compiled = MACHINE.compile_expression_owned(source);
            compiled.map_err(|error| refuse(error.detail().unwrap_or("this is not an expression")))
        };
        // Compiles the text as written first, because the rewritten text would accept a `~` at the end.
        compiled(written.to_owned())?;
        let expression = compiled(source)?;
        Ok(Self { written: written.to_owned(), expression, references })
    }
}

struct Rendering {
    /// Whether the node is known.
    has_node: bool,
    context: Value,
    /// The remaining size budget.
    left: usize,
}

impl Rendering {
    fn new(scope: &Scope) -> Self {
        Self { has_node: scope.node.is_some(), context: scope.context(), left: limits::PARAMS_BYTES }
    }

    fn form(&mut self, form: &Form) -> Result<serde_json::Value, Wrong> {
        match form {
            Form::Plain(value) => Ok(value.clone()),
            Form::Whole(formula) => {
                let value = self.value(formula)?;
                to_json(&value, &mut self.left).map_err(|error| self.refused(formula, &error))
            }
            Form::Text(pieces) => {
                let mut out = String::new();
                for piece in pieces {
                    match piece {
                        Piece::Plain(text) => out.push_str(text),
                        Piece::Formula(formula) => {
                            let value = self.value(formula)?;
                            print(&value, &mut out, &mut self.left)
                                .map_err(|error| self.refused(formula, &error))?;
                        }
                    }
                }
                Ok(serde_json::Value::String(out))
            }
            Form::List(items) => {
                let values = items.iter().enumerate().map(|(index, item)| {
                    self.form(item).map_err(|wrong| wrong.within(Element::Index(index)))
                });
                Ok(serde_json::Value::Array(values.collect::<Result<_, _>>()?))
            }
            Form::Map(entries) => {
                let values = entries.iter().map(|(key, value)| {
                    let value = self.form(value).map_err(|wrong| wrong.within(Element::Key(key.clone())))?;
                    Ok((key.clone(), value))
                });
                Ok(serde_json::Value::Object(values.collect::<Result<_, Wrong>>()?))
            }
        }
    }

    fn value(&self, formula: &Formula) -> Result<Value, Wrong> {
        let value =
            formula.expression.eval(self.context.clone()).map_err(|error| self.refused(formula, &error))?;
        if value.is_undefined() || value.is_none() {
            return Err(self.missing(formula));
        }
        Ok(value)
    }

    fn refused(&self, formula: &Formula, error: &minijinja::Error) -> Wrong {
        let why = match error.kind() {
            ErrorKind::UndefinedError => return self.missing(formula),
            ErrorKind::OutOfFuel => "its evaluation takes too many steps".to_owned(),
            ErrorKind::MissingArgument => "an argument of a filter is missing".to_owned(),
            ErrorKind::TooManyArguments => "a filter is given too many values".to_owned(),
            kind => error.detail().map_or_else(|| kind.to_string(), str::to_owned),
        };
        Wrong::new(format!("in `{{{{ {} }}}}`: {why}", shown(&formula.written)))
    }

    /// Reports which names of the formula have no value.
    fn missing(&self, formula: &Formula) -> Wrong {
        let missing = formula.references.iter().find(|reference| !self.has_value(reference));
        let Some(reference) = missing else {
            return Wrong::new(format!("`{{{{ {} }}}}` has no value", shown(&formula.written)));
        };
        let why = match reference.root {
            Root::Params => String::new(),
            Root::Steps => format!(": step `{}` was skipped, or did not set it", shown(reference.name())),
            Root::Node if !self.has_node => ": the node is not known here".to_owned(),
            Root::Node => " on this node".to_owned(),
            Root::Run => " in this run".to_owned(),
            Root::Item | Root::Index => " for this item".to_owned(),
            Root::Payload => " in this request".to_owned(),
            Root::Trigger => " here".to_owned(),
            Root::Event => " for this event".to_owned(),
        };
        Wrong::new(format!("`{reference}` has no value{why}"))
    }

    fn has_value(&self, reference: &Reference) -> bool {
        let mut value = self.context.get_attr(reference.root.as_str()).unwrap_or_default();
        for part in &reference.path {
            value = match part {
                Part::Name(name) => value.get_item(&Value::from(name.as_str())),
                Part::Index(index) => value.get_item(&Value::from(*index)),
                // The rest of the path is known only at evaluation.
                Part::Computed => return true,
            }
            .unwrap_or_default();
        }
        !value.is_undefined() && !value.is_none()
    }
}
