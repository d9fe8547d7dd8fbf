"""The command line: `lamina NOUN VERB`, thin over the store.

    main              the program: commands, exit codes, one line per error
    target            where a command works: `--data DIRECTORY` or `--server URL`, opened
    output            tables for people, one JSON object per line for programs
    topic_commands, schema_commands, group_commands, router_commands, segment_commands,
    tier_commands, serve_commands, server_commands, cluster_commands, cat_command, sql_command,
    pipeline_commands (with pipeline_bulk, pipeline_table, pipeline_running)
                      the nouns; each function is a verb
    offsets, percent, input_format
                      grammars that users know already: rpk's offsets, kcat's and rpk's formats
    consuming, record_input, record_printing, group_reading, group_seek, layer_drawing,
    file_reports, file_opening, names_on_disk
                      what several commands share
    doctor, bench, warm_progress
                      `lamina doctor`, `lamina bench` and `lamina warm`

Rules.
1. No storage logic here: a command calls the store or `lamina.inspect` and renders the answer.
2. `--json` prints one object per line and nothing else; colours and progress are for terminals.
3. Exit codes belong to the families of `lamina.errors`; 0 is success.
4. A command imports what it needs when it runs, so that `lamina --help` is instant.
5. A command that destroys anything is a dry run without `--yes`: it prints what it would do.
6. Every command has an example in its help, and a test holds docs/cli.md to the commands.
"""
