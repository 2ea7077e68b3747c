//! Decides what an entry with `for_each` goes over when its turn comes.

use std::sync::Arc;

use serde_json::Value;

use super::progress::Progress;
use crate::expr::FOR_EACH;
use crate::limits;
use crate::plan::{Items, PlanEntry};

impl Progress {
    /// The items of a pass, if it goes over any. The same again whenever it is asked: they come from what is recorded.
    pub(super) fn items_of(&mut self, pass: u32) -> Result<Option<Arc<[Value]>>, String> {
        let plan = Arc::clone(&self.plan);
        let entry = self.entry(pass);
        let PlanEntry { each: Some(each), length, .. } = &plan.entries[entry as usize] else {
            return Ok(None);
        };
        let items = match &each.items {
            Items::Known(items) => Arc::clone(items),
            Items::Expected(uses) => {
                let scope = self.scope_of(uses, entry, None, None, None);
                let rendered = uses.template.render(&scope).map_err(|problem| problem.to_string())?;
                list(rendered.get(FOR_EACH).unwrap_or(&Value::Null))?
            }
        };
        let instances = self.instances + items.len() * *length as usize;
        if instances > limits::INSTANCES_PER_RUN {
            return Err(format!(
                "for_each: with these items the run has more than {} instances",
                limits::INSTANCES_PER_RUN
            ));
        }
        Ok(Some(items))
    }

    /// What its items say is a list from now on.
    pub(super) fn note_items(&mut self, pass: u32, items: &[Value]) {
        let count = u32::try_from(items.len()).expect("items are bounded");
        self.outputs.note_items(self.entry(pass), count);
    }

    /// Whether no item of a pass whose turn has come is left to do: there are none, or all of them succeeded in the run that
    /// this one tries again. Nothing is recorded of such a pass, so nothing that came since may make a difference: it begins
    /// nothing, and there is nothing to skip.
    pub(super) fn has_nothing_to_do(&mut self, pass: u32) -> bool {
        let PlanEntry { first, length, ref each, .. } = self.plan.entries[self.entry(pass) as usize];
        if each.is_none() || self.condition_holds(pass).is_err() {
            return false;
        }
        let Ok(Some(items)) = self.items_of(pass) else { return false };
        let has = |item| (first..first + length).all(|step| self.carried.contains(&(step, None, Some(item))));
        let is_whole = (0..).zip(items.iter()).all(|(item, _)| has(item));
        if is_whole {
            self.note_items(pass, &items);
        }
        is_whole
    }
}

fn list(value: &Value) -> Result<Arc<[Value]>, String> {
    let items = match value {
        Value::Array(items) => items.clone(),
        // A line `name=[…]` is a text.
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Array(items)) => items,
            _ => return Err("for_each: it came to a text, and no list".to_owned()),
        },
        Value::Object(_) => return Err("for_each: it came to a map, and no list".to_owned()),
        other => return Err(format!("for_each: it came to `{other}`, and no list")),
    };
    if items.len() > limits::ITEMS {
        return Err(format!(
            "for_each: there are {} items; at most {} are possible",
            items.len(),
            limits::ITEMS
        ));
    }
    Ok(items.into())
}
