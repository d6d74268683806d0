//! Folders of the archive: one for each host or node.

/// A host's name as a folder.
pub(super) fn folder(name: &str) -> String {
    let mut folder = String::new();
    for letter in name.chars() {
        let is_plain = letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
        folder.push(if is_plain { letter } else { '_' });
    }
    if folder.chars().all(|letter| letter == '.') {
        return "_".to_owned();
    }
    folder
}

/// A folder for each name. Two pods may be of one node, and two names may become one folder.
pub(super) fn distinct_folders<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut folders: Vec<String> = Vec::new();
    for name in names {
        let first = folder(name);
        let mut other = first.clone();
        let mut number = 1;
        while folders.contains(&other) {
            number += 1;
            // After `_` the name is still found (`Anonymous`).
            other = format!("{first}_{number}");
        }
        folders.push(other);
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_have_two_folders() {
        let folders = distinct_folders(["cloud-1", "a@b", "cloud-1", "a_b", "cloud-1"]);
        assert_eq!(
            folders,
            ["cloud-1", "a_b", "cloud-1_2", "a_b_2", "cloud-1_3"]
        );
    }

    #[test]
    fn no_name_leads_out_of_its_folder() {
        assert_eq!(folder("root@cloud-1"), "root_cloud-1");
        assert_eq!(folder("../../etc"), ".._.._etc");
        assert_eq!(folder(".."), "_");
    }
}
