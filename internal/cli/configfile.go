package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

const configFileMax = 1 << 20 // bytes

// fileValue is a value of the configuration file and where it stands.
type fileValue struct {
	text   string
	origin string // "outbox.yaml:3: slot"
}

// readConfigFile reads a flat YAML mapping. Keys are checked against known; values are
// text, numbers, true or false, or lists of those, which are joined by commas.
func readConfigFile(path string, known map[string]setting) (map[string]fileValue, error) {
	content, err := readBounded(path)
	if err != nil {
		return nil, fault.NewUsage(fmt.Sprintf("--config: %v", err), "give --config (or OUTBOX_CDC_CONFIG) a file that this user may read")
	}
	name := filepath.Base(path)
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil // an empty file
	} else if err != nil {
		return nil, fault.NewUsage(yamlError(name, err), "write one key and value a line, such as slot: outbox")
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fault.NewUsage(name+": more than one YAML document", "remove the line with ---")
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fault.NewUsage(fmt.Sprintf("%s:%d: not a mapping of keys to values", name, root.Line), "write one key and value a line, such as slot: outbox")
	}
	values := map[string]fileValue{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		origin := fmt.Sprintf("%s:%d: %s", name, key.Line, key.Value)
		if _, ok := known[key.Value]; !ok || key.Value == "config" {
			return nil, fault.NewUsage(fmt.Sprintf("%s:%d: unknown key %q", name, key.Line, key.Value), nearestHint(key.Value, known, ""))
		}
		if _, twice := values[key.Value]; twice {
			return nil, fault.NewUsage(origin+" is given twice", "keep one of them")
		}
		text, ok := scalarText(node)
		if !ok {
			return nil, fault.NewUsage(origin+" has no value that a flag could have", "write text, a number, true, false or a list of those; leave the key out for the default")
		}
		values[key.Value] = fileValue{text: text, origin: origin}
	}
	return values, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open configuration file: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	content, err := io.ReadAll(io.LimitReader(f, configFileMax+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration file: %w", err)
	}
	if len(content) > configFileMax {
		return nil, fmt.Errorf("configuration file %s is larger than %s", path, formatSize(configFileMax))
	}
	return content, nil
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// yamlError names the line only: the parser's text may repeat pieces of a value.
func yamlError(name string, err error) string {
	if line := yamlLine.FindStringSubmatch(err.Error()); line != nil {
		return name + ":" + line[1] + ": not valid YAML"
	}
	return name + ": not valid YAML"
}

func scalarText(node *yaml.Node) (string, bool) {
	switch node.Kind {
	case yaml.AliasNode:
		return scalarText(node.Alias)
	case yaml.ScalarNode:
		return node.Value, node.Tag != "!!null"
	case yaml.SequenceNode:
		var items []string
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return "", false
			}
			items = append(items, item.Value)
		}
		return strings.Join(items, ","), len(items) > 0
	default:
		return "", false
	}
}
