//! Backends that nodes declare, and the catalogue of them.

use downbeat_core::backend::BackendSchema;

use super::*;

/// Creates a record with its own schemas, like one that has just registered.
fn node(index: u32, backends: &[&str]) -> NodeRecord {
    let schema = |name: &&str| {
        Arc::new(BackendSchema { name: (*name).to_owned(), help: String::new(), actions: Vec::new() })
    };
    let mut node = record(index, SESSION);
    node.description.backends = backends.iter().map(schema).collect();
    node
}

#[test]
fn nodes_that_declare_the_same_share_it() {
    let mut board = Board::default();
    board.add_node(node(1, &["backup", "mail"]));
    board.add_node(node(2, &["mail"]));
    let nodes: Vec<_> = board.nodes().flat_map(|node| node.description.backends.clone()).collect();
    let mail: Vec<_> = nodes.iter().filter(|backend| backend.name == "mail").collect();
    assert!(mail.len() == 2 && Arc::ptr_eq(mail[0], mail[1]));
}

#[test]
fn a_catalogue_is_made_again_only_when_a_node_declares_something_else() {
    let mut board = Board::default();
    let cluster = ClusterId::DEFAULT;
    board.add_node(node(1, &["backup"]));
    let first = board.catalogue(cluster);
    assert!(first.backend("backup").is_ok());
    for again in [node(1, &["backup"]), node(2, &["backup"]), node(2, &["backup"])] {
        board.add_node(again);
        assert!(Arc::ptr_eq(&first, &board.catalogue(cluster)));
    }
    board.add_node(node(3, &["backup", "mail"]));
    assert!(board.catalogue(cluster).backend("mail").is_ok());
    board.add_node(node(3, &["backup"]));
    assert!(board.catalogue(cluster).backend("mail").is_err(), "it was withdrawn");
}
