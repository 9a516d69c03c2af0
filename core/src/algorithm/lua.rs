//! The Lua sources of algorithms. A file has parts, so that algorithms can share some.
//!
//! A part begins below a line `--- name`. A line `$name` in it stands for the part of that name. What comes before
//! the first part is about the file.

/// The Lua source of an algorithm: its own file, and then those whose parts it shares.
pub(super) struct Lua(pub(super) &'static [&'static str]);

impl Lua {
    /// The first part of this name, with the parts that stand in it; `None` if one of them is in no file.
    pub(super) fn part(&self, name: &str) -> Option<String> {
        let mut source = String::new();
        for line in self.text(name)?.lines() {
            match line.trim_start().strip_prefix('$') {
                Some(inner) => source += &self.part(inner)?,
                None => source.extend([line, "\n"]),
            }
        }
        Some(source)
    }

    fn text(&self, name: &str) -> Option<&'static str> {
        let parts = self.0.iter().flat_map(|file| file.split("\n--- ").skip(1));
        let mut named = parts.filter_map(|part| part.split_once('\n'));
        named.find(|(other, _)| *other == name).map(|(_, text)| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_in_parts_and_the_first_of_a_name_counts() {
        const OWN: &str = "-- About it.\n\n--- decide\na()\n  $b\n\n--- b\nb()\n";
        const SHARED: &str = "-- Shared.\n\n--- b\nother()\n--- c\nif a then\n  $b\nend\n";
        let lua = Lua(&[OWN, SHARED]);
        assert_eq!(lua.part("decide").unwrap(), "a()\nb()\n");
        assert_eq!(lua.part("c").unwrap(), "if a then\nb()\nend\n");
        assert_eq!(Lua(&[SHARED]).part("c").unwrap(), "if a then\nother()\nend\n");
        assert_eq!((lua.part("About"), Lua(&["\n--- b\n$none\n"]).part("b")), (None, None));
    }
}
