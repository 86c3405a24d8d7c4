"""clusterfn.yml and the options of a call. Kept empty: `import clusterfn` needs the options, and not the file."""
