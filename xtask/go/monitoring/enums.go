package main

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// The values of each type that has a few named ones, for the types that occur in our dashboards. The
// generated types take any value. A type that is missing here allows none.
var enums = map[reflect.Type][]any{}

func init() {
	for _, values := range [][]any{
		{
			common.BigValueColorModeValue,
			common.BigValueColorModeBackground,
			common.BigValueColorModeBackgroundSolid,
			common.BigValueColorModeNone,
		},
		{common.BigValueGraphModeNone, common.BigValueGraphModeLine, common.BigValueGraphModeArea},
		{common.BigValueJustifyModeAuto, common.BigValueJustifyModeCenter},
		{
			common.BigValueTextModeAuto,
			common.BigValueTextModeValue,
			common.BigValueTextModeValueAndName,
			common.BigValueTextModeName,
			common.BigValueTextModeNone,
		},
		{common.LegendDisplayModeList, common.LegendDisplayModeTable, common.LegendDisplayModeHidden},
		{common.LegendPlacementBottom, common.LegendPlacementRight},
		{
			common.PercentChangeColorModeStandard,
			common.PercentChangeColorModeInverted,
			common.PercentChangeColorModeSameAsValue,
		},
		{common.SortOrderAscending, common.SortOrderDescending, common.SortOrderNone},
		{common.StackingModeNone, common.StackingModeNormal, common.StackingModePercent},
		{
			common.TooltipDisplayModeSingle,
			common.TooltipDisplayModeMulti,
			common.TooltipDisplayModeNone,
		},
		{common.VisibilityModeAuto, common.VisibilityModeNever, common.VisibilityModeAlways},
		{common.VizOrientationAuto, common.VizOrientationVertical, common.VizOrientationHorizontal},
		{
			dashboard.DashboardCursorSyncOff,
			dashboard.DashboardCursorSyncCrosshair,
			dashboard.DashboardCursorSyncTooltip,
		},
		{dashboard.DashboardLinkTypeLink, dashboard.DashboardLinkTypeDashboards},
		{dashboard.ThresholdsModeAbsolute, dashboard.ThresholdsModePercentage},
		{
			dashboard.VariableHideDontHide,
			dashboard.VariableHideHideLabel,
			dashboard.VariableHideHideVariable,
			dashboard.VariableHideInControlsMenu,
		},
		{
			dashboard.VariableRefreshNever,
			dashboard.VariableRefreshOnDashboardLoad,
			dashboard.VariableRefreshOnTimeRangeChanged,
		},
		{
			dashboard.VariableSortDisabled,
			dashboard.VariableSortAlphabeticalAsc,
			dashboard.VariableSortAlphabeticalDesc,
			dashboard.VariableSortNumericalAsc,
			dashboard.VariableSortNumericalDesc,
			dashboard.VariableSortAlphabeticalCaseInsensitiveAsc,
			dashboard.VariableSortAlphabeticalCaseInsensitiveDesc,
			dashboard.VariableSortNaturalAsc,
			dashboard.VariableSortNaturalDesc,
		},
		{
			dashboard.VariableTypeQuery,
			dashboard.VariableTypeAdhoc,
			dashboard.VariableTypeGroupby,
			dashboard.VariableTypeConstant,
			dashboard.VariableTypeDatasource,
			dashboard.VariableTypeInterval,
			dashboard.VariableTypeTextbox,
			dashboard.VariableTypeCustom,
			dashboard.VariableTypeSystem,
			dashboard.VariableTypeSnapshot,
			dashboard.VariableTypeSwitch,
		},
	} {
		enums[reflect.TypeOf(values[0])] = values
	}
}

// checkEnums walks all values of the generated types below one.
func checkEnums(path string, value reflect.Value) error {
	generated := strings.Contains(value.Type().PkgPath(), "grafana-foundation-sdk")
	switch value.Kind() {
	case reflect.Pointer, reflect.Interface:
		if value.IsNil() {
			return nil
		}
		return checkEnums(path, value.Elem())
	case reflect.Struct:
		for i := range value.NumField() {
			name := value.Type().Field(i).Name
			if err := checkEnums(path+"."+name, value.Field(i)); err != nil {
				return err
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			if err := checkEnums(fmt.Sprintf("%s[%d]", path, i), value.Index(i)); err != nil {
				return err
			}
		}
	case reflect.String, reflect.Int64:
		if generated {
			return checkEnum(path, value)
		}
	}
	return nil
}

func checkEnum(path string, value reflect.Value) error {
	for _, allowed := range enums[value.Type()] {
		if value.Interface() == allowed {
			return nil
		}
	}
	return fmt.Errorf("%s: %v is none of %s %v", path, value, value.Type(), enums[value.Type()])
}
