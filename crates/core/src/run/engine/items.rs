//! Decides which items an entry with `for_each` has when it is due.

use std::sync::Arc;

use serde_json::Value;

use super::progress::Progress;
use crate::expr::FOR_EACH;
use crate::limits;
use crate::plan::{ItemIx, Items, PassIx};
use crate::run::Instance;

impl Progress {
    /// Returns the items of a pass, if it has any. They depend only on records, so they are the same each time.
    pub(super) fn items_of(&mut self, pass: PassIx) -> Result<Option<Arc<[Value]>>, String> {
        let plan = Arc::clone(&self.plan);
        let entry = plan.entry_of(pass);
        let Some(each) = &entry.each else { return Ok(None) };
        let items = match &each.items {
            Items::Known(items) => Arc::clone(items),
            Items::Expected(template) => {
                let scope = self.scope_of(template, plan.passes[pass].entry, None, None, None)?;
                let rendered = template.render(&scope).map_err(|problem| problem.to_string())?;
                list(rendered.get(FOR_EACH).unwrap_or(&Value::Null))?
            }
        };
        let most = limits::INSTANCES_PER_RUN;
        if self.instances + items.len() * entry.steps().len() > most {
            return Err(format!("for_each: with these items the run has more than {most} instances"));
        }
        Ok(Some(items))
    }

    /// Records the number of items: from now on the outputs of the entry are a list.
    pub(super) fn note_items(&mut self, pass: PassIx, items: &[Value]) {
        let count = u32::try_from(items.len()).expect("items are bounded");
        self.outputs.note_items(self.plan.passes[pass].entry, count);
    }

    /// Returns whether a due pass has no items left to run: it has none, or all of them succeeded in the run that this
    /// one retries. Such a pass leaves no record, so later events must make no difference to it: it begins nothing and
    /// skips nothing.
    pub(super) fn has_nothing_to_do(&mut self, pass: PassIx) -> bool {
        if self.plan.entry_of(pass).each.is_none() || self.condition_holds(pass).is_err() {
            return false;
        }
        let Ok(Some(items)) = self.items_of(pass) else { return false };
        let steps = self.plan.entry_of(pass).steps();
        let has =
            |step, item| self.carried.contains(&Instance { step, node: None, item: Some(ItemIx(item)) });
        let is_whole = (0..).zip(items.iter()).all(|(item, _)| steps.clone().all(|step| has(step, item)));
        if is_whole {
            self.note_items(pass, &items);
        }
        is_whole
    }
}

fn list(value: &Value) -> Result<Arc<[Value]>, String> {
    let items = match value {
        Value::Array(items) => items.clone(),
        // Output lines `name=[…]` are strings.
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::Array(items)) => items,
            _ => return Err("for_each: expected a list, got a string".to_owned()),
        },
        Value::Object(_) => return Err("for_each: expected a list, got a map".to_owned()),
        other => return Err(format!("for_each: expected a list, got `{other}`")),
    };
    let (count, most) = (items.len(), limits::ITEMS);
    if count > most {
        return Err(format!("for_each: there are {count} items; at most {most} are possible"));
    }
    Ok(items.into())
}
