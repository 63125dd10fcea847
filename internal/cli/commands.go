package cli

// commands lists the commands in the order of the help.
func commands() []command {
	return []command{
		startCommand(),
		setupCommand(),
		statusCommand(),
		verifyCommand(),
		waitCommand(),
		replayCommand(),
		deadLetterCommand(),
		migrateCommand(),
		slotCommand(),
		publicationCommand(),
		streamCommand(),
		devCommand(),
		completionCommand(),
		versionCommand(),
	}
}
